#include "choir/data/tokens/token_blend.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "choir/core/error.hpp"
#include "choir/core/plural.hpp"

namespace choir {
namespace {

/// A sample depends on the number of draws before it; only those since the last multiple of this
/// are counted anew.
constexpr std::int64_t kStride = 1024;

std::uint64_t word_of(const PhiloxBlock& words) {
  return (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
}

std::uint64_t pool_seed(std::uint64_t seed, std::size_t pool) {
  return word_of(philox_at(philox_key(seed, "data.blend.order"), pool));
}

Sampler pool_sampler(const std::string& texts, std::int64_t tokens, std::int64_t block_size,
                     std::uint64_t seed) {
  try {
    return {tokens, block_size, seed};
  } catch (const DataError& error) {
    throw DataError(fmt::format("'{}': {}", texts, error.what()), error.hint());
  }
}

}  // namespace

TokenBlend::TokenBlend(std::span<const TokenPool> pools, std::span<const std::string> names,
                       std::span<const std::int64_t> tokens, std::int64_t block_size,
                       std::uint64_t seed)
    : pool_key_(philox_key(seed, "data.blend.pool")) {
  CHOIR_CHECK(names.size() == tokens.size() && !pools.empty(), "{} texts, {} lengths, {} pools",
              names.size(), tokens.size(), pools.size());
  double total = 0, sum = 0;
  for (const TokenPool& pool : pools) total += pool.probability;
  for (const TokenPool& pool : pools) {
    const int front = pool.texts.front();
    CHOIR_CHECK(pool.probability > 0 && pool.texts.back() - front + 1 == std::ssize(pool.texts),
                "pool of texts {} to {}, probability {}", front, pool.texts.back(),
                pool.probability);
    std::int64_t length = 0;
    std::string texts;
    for (const int i : pool.texts) {
      length += tokens[static_cast<std::size_t>(i)];
      texts += (texts.empty() ? "" : ", ") + names[static_cast<std::size_t>(i)];
    }
    CHOIR_CHECK(pool.limit == 0 || pool.texts.size() == 1, "a limit of several texts");
    if (pool.limit > 0) length = std::min(length, pool.limit);
    limited_ = limited_ || pool.limit > 0;
    const std::uint64_t order = pools.size() == 1 ? seed : pool_seed(seed, pools_.size());
    pools_.push_back(
        {.texts = texts,
         .first = std::accumulate(tokens.begin(), tokens.begin() + front, std::int64_t{0}),
         .tokens = length,
         .share = pool.probability / total,
         .sampler = pool_sampler(texts, length, block_size, order)});
    sum += pool.probability;
    below_.push_back(sum / total);
  }
  below_.back() = 1;
}

int TokenBlend::pool_of(std::int64_t sample) const {
  if (pools_.size() == 1) return 0;
  const std::uint64_t bits = word_of(philox_at(pool_key_, static_cast<std::uint64_t>(sample)));
  const double u = static_cast<double>(bits >> 11) * 0x1p-53;
  std::size_t pool = 0;
  while (u >= below_[pool]) ++pool;
  return static_cast<int>(pool);
}

std::int64_t TokenBlend::drawn_before(std::int64_t sample, int pool) {
  if (drawn_.empty()) drawn_.emplace_back(pools_.size(), 0);
  const auto stride = static_cast<std::size_t>(sample / kStride);
  while (drawn_.size() <= stride) {
    std::vector<std::int64_t> counts = drawn_.back();
    const std::int64_t first = (std::ssize(drawn_) - 1) * kStride;
    for (std::int64_t i = first; i < first + kStride; ++i)
      ++counts[static_cast<std::size_t>(pool_of(i))];
    drawn_.push_back(std::move(counts));
  }
  std::int64_t count = drawn_[stride][static_cast<std::size_t>(pool)];
  for (std::int64_t i = sample / kStride * kStride; i < sample; ++i) count += pool_of(i) == pool;
  return count;
}

TokenWindow TokenBlend::window(std::int64_t sample) {
  CHOIR_CHECK(sample >= 0, "sample {}", sample);
  const int pool = pool_of(sample);
  const Pool& from = pools_[static_cast<std::size_t>(pool)];
  TokenWindow window =
      from.sampler.window(pools_.size() == 1 ? sample : drawn_before(sample, pool));
  window.start += from.first;
  return window;
}

std::int64_t TokenBlend::windows_per_epoch() const {
  std::int64_t windows = 0;
  for (const Pool& pool : pools_) windows += pool.sampler.windows_per_epoch();
  return windows;
}

std::string TokenBlend::contents() const {
  std::string text;
  if (pools_.size() == 1 && !limited_) return text;
  for (const Pool& pool : pools_)
    text += fmt::format("{}{} of {} tokens", text.empty() ? ", blend " : " + ", pool.share,
                        pool.tokens);
  return text;
}

std::string TokenBlend::to_string() const {
  std::string text;
  if (pools_.size() == 1) return text;
  for (const Pool& pool : pools_)
    text += fmt::format("{}blend {:.2f} % '{}': {}", text.empty() ? "" : "\n", 100 * pool.share,
                        pool.texts, counted(pool.tokens, "token"));
  return text;
}

}  // namespace choir
