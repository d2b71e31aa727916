#include "choir/data/speech/speech_sources.hpp"

#include <fmt/core.h>

#include <numeric>

#include "choir/core/error.hpp"
#include "choir/core/plural.hpp"

namespace choir {

std::vector<SpeechSource> sources_of(std::span<const SpeechLeaf> leaves, const SpeechBlend& blend,
                                     int sample_rate) {
  std::vector<SpeechSource> sources;
  for (const SpeechLeaf& leaf : leaves) sources.push_back({.leaf = leaf});
  double total = 0;
  for (int p = 0; p < blend.pools(); ++p) total += blend.pool(p).probability;
  for (int p = 0; p < blend.pools(); ++p) {
    const SpeechPoolItems& pool = blend.pool(p);
    // All utterances of a pool are drawn equally often.
    const double each = pool.probability / total / static_cast<double>(pool.items.size());
    for (const SpeechItem& item : pool.items) {
      SpeechSource& source = sources.at(static_cast<std::size_t>(item.leaf));
      source.share += each;
      source.hours += static_cast<double>(item.samples) / sample_rate / 3600;
      ++source.utterances;
    }
  }
  return sources;
}

std::string tags_text(const std::map<std::string, std::string>& tags) {
  std::string text;
  for (const auto& [name, value] : tags)
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, value);
  return text;
}

std::string to_string(std::span<const SpeechSource> sources) {
  std::string text;
  for (const SpeechSource& source : sources) {
    const std::string tags = tags_text(source.leaf.tags);
    text +=
        fmt::format("{}blend {:.2f} % '{}': {}, {:.3g} hours{}{}", text.empty() ? "" : "\n",
                    100 * source.share, source.leaf.folder, counted(source.utterances, "utterance"),
                    source.hours, tags.empty() ? "" : ", tags ", tags);
  }
  return text;
}

std::string drawn_text(std::span<const SpeechSource> sources, std::span<const std::int64_t> drawn) {
  CHOIR_CHECK(sources.size() == drawn.size(), "{} counts of {} sources", drawn.size(),
              sources.size());
  const std::int64_t all = std::accumulate(drawn.begin(), drawn.end(), std::int64_t{0});
  if (sources.size() < 2 || all == 0) return {};
  const auto percent = [&](std::int64_t n) {
    return 100 * static_cast<double>(n) / static_cast<double>(all);
  };
  std::map<std::string, std::int64_t> by_tag;
  std::string text;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    text += fmt::format("{}'{}' {:.1f} % (of {:.1f} %)", i ? ", " : "", sources[i].leaf.folder,
                        percent(drawn[i]), 100 * sources[i].share);
    for (const auto& [name, value] : sources[i].leaf.tags) by_tag[name + "=" + value] += drawn[i];
  }
  std::string tags;
  for (const auto& [tag, count] : by_tag)
    tags += fmt::format("{}{} {:.1f} %", tags.empty() ? "; by tag: " : ", ", tag, percent(count));
  return text + tags;
}

}  // namespace choir
