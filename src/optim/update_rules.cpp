// The table of update rules, and what several of them share.

#include <algorithm>
#include <array>

#include "choir/core/error.hpp"
#include "src/optim/adamw.hpp"
#include "src/optim/lars.hpp"
#include "src/optim/muon.hpp"
#include "src/optim/update_rule.hpp"

namespace choir {

std::span<const UpdateRule* const> update_rules() {
  static const std::array<const UpdateRule*, 3> table{
      &adamw_rule(),
      &lars_rule(),
      &muon_rule(),
  };
  return table;
}

const UpdateRule& update_rule(std::string_view name) {
  const auto table = update_rules();
  const auto found = std::ranges::find(table, name, &UpdateRule::name);
  CHOIR_CHECK(found != table.end(), "there is no update rule '{}'", name);
  return **found;
}

namespace {

struct NoSettings {};

}  // namespace

const KeySet& UpdateRule::own_keys() const {
  static const KeyTable<NoSettings> none;
  return none;
}

std::unique_ptr<HeldSettings> UpdateRule::settings() const {
  return std::make_unique<SettingsOf<NoSettings>>();
}

UpdateRule::Traffic UpdateRule::plain_traffic(const Precision& precision) const {
  const auto master = static_cast<double>(size_of(precision.master));
  const auto word = static_cast<double>(size_of(precision.gradient));
  const auto moment = static_cast<double>(size_of(precision.moment));
  const auto copy = precision.has_copy() ? static_cast<double>(size_of(precision.compute)) : 0.0;
  const auto states = static_cast<double>(moments().size());
  return {.update = 2 * master + 2 * states * moment + word + copy, .norms = word};
}

std::vector<ScaledRange> scaled_ranges(const UpdateSettings& settings, const Bucket& bucket) {
  std::vector<ScaledRange> ranges{{{0, bucket.size}, 1}};
  if (!settings.scale) return ranges;
  for (const Parameter* p : bucket.parameters) {
    const double scale = settings.scale(*p);
    if (p->offset == 0) ranges.back().scale = scale;
    if (ranges.back().scale == scale) continue;
    ranges.back().local.count = p->offset - ranges.back().local.first;
    ranges.push_back({{p->offset, bucket.size - p->offset}, scale});
  }
  return ranges;
}

}  // namespace choir
