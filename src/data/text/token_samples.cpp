#include "src/data/text/token_samples.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "src/core/quantities.hpp"
#include "src/data/sampling/permutation.hpp"

namespace choir {

Sampler::Sampler(std::int64_t tokens, std::int64_t block_size, std::uint64_t seed)
    : tokens_(tokens),
      block_size_(block_size),
      order_key_(philox_key(seed, "data.order")),
      phase_key_(philox_key(seed, "data.phase")) {
  CHOIR_CHECK(block_size >= 1, "block size {}", block_size);
  if (tokens < block_size + 1) {
    throw DataError(fmt::format("the training data has {}, fewer than the {} of one sample "
                                "(model.block_size {} + 1)",
                                counted(tokens, "token"), format_count(block_size + 1), block_size),
                    "use more text or a smaller model.block_size");
  }
  windows_ = std::max<std::int64_t>(1, (tokens - block_size) / block_size);
}

std::int64_t Sampler::phase(std::int64_t epoch) const {
  const auto phases = static_cast<std::uint64_t>(tokens_ - windows_ * block_size_);
  const PhiloxBlock words = philox_at(phase_key_, static_cast<std::uint64_t>(epoch));
  const std::uint64_t random = (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
  return static_cast<std::int64_t>(random % phases);
}

TokenWindow Sampler::window(std::int64_t sample) const {
  CHOIR_CHECK(sample >= 0, "sample {}", sample);
  const std::int64_t epoch = epoch_of(sample);
  const Permutation order(static_cast<std::uint64_t>(windows_), order_key_,
                          static_cast<std::uint64_t>(epoch));
  const std::uint64_t w = order(static_cast<std::uint64_t>(sample % windows_));
  return {phase(epoch) + static_cast<std::int64_t>(w) * block_size_, block_size_};
}

EvalSampler::EvalSampler(std::int64_t tokens, std::int64_t block_size)
    : tokens_(tokens), block_size_(block_size) {
  CHOIR_CHECK(block_size >= 1, "block size {}", block_size);
  if (tokens < 2)
    throw DataError(fmt::format("the validation data has {}; at least two are needed",
                                counted(tokens, "token")),
                    "use more text or a larger share for validation");
  windows_ = (tokens - 1 + block_size - 1) / block_size;
}

TokenWindow EvalSampler::window(std::int64_t index) const {
  if (index >= windows_) return {};
  const std::int64_t start = index * block_size_;
  return {start, std::min(block_size_, tokens_ - 1 - start)};
}

namespace {

// Widens `count` stored tokens and returns the largest id as unsigned, so that a negative one is
// large.
template <class Stored>
std::uint32_t widen(const char* packed, std::int64_t count, std::int32_t* to) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Stored token;
    std::memcpy(&token, packed + static_cast<std::size_t>(i) * sizeof(Stored), sizeof(Stored));
    to[i] = static_cast<std::int32_t>(token);
    largest = std::max(largest, static_cast<std::uint32_t>(to[i]));
  }
  return largest;
}

[[noreturn]] void refuse_id(const TokenWindow& window, const std::int32_t* inputs,
                            const std::int32_t* targets, std::int64_t vocab_size,
                            const TokenStream& stream) {
  const auto outside = [&](std::int32_t id) { return id < 0 || id >= vocab_size; };
  std::int64_t at = 0;
  while (at < window.targets && !outside(inputs[at])) ++at;
  const std::int32_t id = at < window.targets ? inputs[at] : targets[window.targets - 1];
  throw DataError(fmt::format("token {} at {} is outside the vocabulary of {}", id,
                              stream.place_of(window.start + at), vocab_size),
                  "the data was made with another vocabulary, or the file is no token file");
}

}  // namespace

BatchBuffer::BatchBuffer(std::int64_t rows, std::int64_t block_size, bool packed)
    : rows_(static_cast<std::size_t>(2 * rows)),
      memory_(static_cast<std::size_t>((packed ? 4 : 2) * rows * block_size)) {
  batch.row_addresses = rows_.data();
  const auto part = [&](int i) {
    return TensorView{memory_.data() + i * rows * block_size, DType::i32, {rows, block_size}};
  };
  batch.inputs = part(0), batch.targets = part(1);
  if (packed) batch.begins = part(2), batch.positions = part(3);
}

void fill_batch(const void* packed, int token_bytes, std::span<const TokenWindow> windows,
                std::int64_t vocab_size, const TokenStream& stream, Batch& batch) {
  const std::int64_t block = batch.inputs.shape[1];
  CHOIR_CHECK(std::ssize(windows) == batch.inputs.shape[0], "{} windows for {} rows",
              windows.size(), batch.inputs.shape[0]);
  const auto* from = static_cast<const char*>(packed);
  auto* inputs = batch.inputs.as<std::int32_t>();
  auto* targets = batch.targets.as<std::int32_t>();
  batch.valid = 0;
  for (const TokenWindow& window : windows) {
    std::uint32_t largest = 0;
    if (window.targets > 0) {
      // Inputs and targets overlap except for one token, so each stored token is converted twice
      // from cache.
      const auto convert = token_bytes == 2 ? widen<std::uint16_t> : widen<std::int32_t>;
      largest = std::max(convert(from, window.targets, inputs),
                         convert(from + token_bytes, window.targets, targets));
      from += (window.targets + 1) * token_bytes;
    }
    if (vocab_size > 0 && largest >= static_cast<std::uint64_t>(vocab_size))
      refuse_id(window, inputs, targets, vocab_size, stream);
    std::fill(inputs + window.targets, inputs + block, 0);
    std::fill(targets + window.targets, targets + block, kIgnoredTarget);
    batch.valid += window.targets;
    inputs += block;
    targets += block;
  }
}

void widen_tokens(const void* packed, const TokenStream& stream, std::int64_t first,
                  std::int64_t count, std::int64_t vocab_size, std::int32_t* to) {
  const auto convert = stream.token_bytes() == 2 ? widen<std::uint16_t> : widen<std::int32_t>;
  const std::uint32_t largest = convert(static_cast<const char*>(packed), count, to);
  if (vocab_size > 0 && largest >= static_cast<std::uint64_t>(vocab_size))
    refuse_id({first, count}, to, to, vocab_size, stream);
}

void fill_synthetic(std::uint64_t seed, std::string_view name, std::int64_t vocab_size,
                    Batch& batch) {
  const PhiloxKey key = philox_key(seed, name);
  const std::int64_t rows = batch.inputs.shape[0], block = batch.inputs.shape[1];
  auto* inputs = batch.inputs.as<std::int32_t>();
  auto* targets = batch.targets.as<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto sample = static_cast<std::uint64_t>(batch.first_sample + row);
    PhiloxBlock words{};
    for (std::int64_t p = 0; p <= block; ++p) {
      if (p % 4 == 0) words = philox_at(key, sample, static_cast<std::uint64_t>(p / 4));
      const auto id = static_cast<std::int32_t>(words[static_cast<std::size_t>(p % 4)] %
                                                static_cast<std::uint64_t>(vocab_size));
      if (p < block) inputs[row * block + p] = id;
      if (p > 0) targets[row * block + p - 1] = id;
    }
  }
  batch.valid = rows * block;
}

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
