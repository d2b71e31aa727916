#include "choir/store/retention.hpp"

#include <algorithm>
#include <cmath>

namespace choir {

std::vector<std::int64_t> steps_to_delete(const std::vector<RetentionEntry>& valid,
                                          const Retention& rules, std::int64_t just_saved) {
  std::vector<RetentionEntry> entries = valid;
  std::sort(entries.begin(), entries.end(),
            [](const RetentionEntry& a, const RetentionEntry& b) { return a.step < b.step; });
  const RetentionEntry* best = nullptr;
  for (const RetentionEntry& entry : entries)
    if (entry.metric && !std::isnan(*entry.metric) && (!best || *entry.metric < *best->metric))
      best = &entry;
  const auto kept = static_cast<std::size_t>(std::max(rules.keep_last, 1));
  std::vector<std::int64_t> doomed;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const RetentionEntry& entry = entries[i];
    const bool recent = i + kept >= entries.size();
    const bool milestone = rules.keep_every > 0 && entry.step % rules.keep_every == 0;
    const bool is_best = rules.keep_best && &entry == best;
    if (!recent && !milestone && !is_best && entry.step != just_saved) doomed.push_back(entry.step);
  }
  return doomed;
}

}  // namespace choir
