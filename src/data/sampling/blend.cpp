#include "src/data/sampling/blend.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"
#include "src/data/sampling/permutation.hpp"

namespace choir {
namespace {

std::uint64_t mix(std::uint64_t h, std::uint64_t value) {  // FNV-1a by words, then spread
  h = (h ^ value) * 0x100000001b3ull;
  return h ^ (h >> 29);
}

double uniform_53(const PhiloxBlock& words) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

SpeechBlend::SpeechBlend(std::vector<SpeechPoolItems> pools, std::uint64_t seed)
    : pools_(std::move(pools)), pool_key_(philox_key(seed, "data.speech.pool")) {
  CHOIR_CHECK(!pools_.empty(), "nothing to draw from");
  double total = 0, sum = 0;
  for (const auto& pool : pools_) total += pool.probability;
  hash_ = mix(0xcbf29ce484222325ull, seed);
  for (const auto& pool : pools_) {
    CHOIR_CHECK(!pool.items.empty() && pool.probability > 0, "a pool of {}, probability {}",
                pool.items.size(), pool.probability);
    sum += pool.probability;
    below_.push_back(sum / total);
    order_keys_.push_back(
        philox_key(seed, fmt::format("data.speech.order.{}", order_keys_.size())));
    hash_ = mix(hash_, pool.items.size());
    hash_ = mix(hash_, static_cast<std::uint64_t>(pool.probability / total * 0x1p52));
    for (const SpeechItem& item : pool.items) {
      hash_ = mix(hash_, static_cast<std::uint64_t>(item.leaf) << 32 |
                             static_cast<std::uint32_t>(item.utterance));
      hash_ = mix(hash_, static_cast<std::uint64_t>(item.samples) << 32 |
                             static_cast<std::uint32_t>(item.labels));
    }
  }
  below_.back() = 1;
}

int SpeechBlend::pool_of(std::int64_t draw) const {
  if (pools_.size() == 1) return 0;
  const double u = uniform_53(philox_at(pool_key_, static_cast<std::uint64_t>(draw)));
  std::size_t pool = 0;
  while (u >= below_[pool]) ++pool;
  return static_cast<int>(pool);
}

SpeechRow SpeechBlend::row(int p, std::int64_t k) const {
  const auto& items = pool(p).items;
  const auto n = static_cast<std::int64_t>(items.size());
  const Permutation order(static_cast<std::uint64_t>(n), order_keys_[static_cast<std::size_t>(p)],
                          static_cast<std::uint64_t>(k / n));
  return {items[order(static_cast<std::uint64_t>(k % n))], k / n};
}

std::uint64_t speech_order_seed(const std::string& shard_seed, std::uint64_t run_seed,
                                std::uint64_t attempt) {
  if (shard_seed.empty()) return run_seed;
  if (shard_seed == "randomized") {
    const PhiloxBlock words = philox_at(philox_key(run_seed, "data.shard_seed"), attempt);
    return (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
  }
  std::uint64_t seed = 0;
  const char* end = shard_seed.data() + shard_seed.size();
  const auto [stop, problem] = std::from_chars(shard_seed.data(), end, seed);
  if (problem != std::errc() || stop != end)
    throw DeckError(fmt::format("data.shard_seed is '{}'", shard_seed),
                    "a whole number from 0 on, or \"randomized\"");
  return seed;
}

std::vector<SpeechLeaf> leaves_of(std::span<const SpeechSource> sources) {
  std::vector<SpeechLeaf> leaves;
  for (const SpeechSource& source : sources) leaves.push_back(source.leaf);
  return leaves;
}

std::string blend_contents(const SpeechBlend& blend, std::span<const SpeechLeaf> leaves,
                           const char* thing) {
  const auto limited = [](const SpeechLeaf& leaf) { return leaf.limit > 0; };
  if (blend.pools() == 1 && std::ranges::none_of(leaves, limited)) return {};
  std::string text;
  for (int p = 0; p < blend.pools(); ++p) {
    const SpeechPoolItems& pool = blend.pool(p);
    text += fmt::format("{}{} of {}", p == 0 ? ", blend " : " + ", pool.probability,
                        counted(std::ssize(pool.items), thing));
  }
  return text;
}

void limit_items(std::vector<SpeechItem>& items, std::int64_t limit) {
  const std::int64_t all = std::ssize(items);
  if (limit <= 0 || limit >= all) return;
  for (std::int64_t i = 0; i < limit; ++i)
    items[static_cast<std::size_t>(i)] = items[static_cast<std::size_t>(i * all / limit)];
  items.resize(static_cast<std::size_t>(limit));
}

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
