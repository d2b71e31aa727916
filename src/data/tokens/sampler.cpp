#include "choir/data/tokens/sampler.hpp"

#include <algorithm>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "choir/core/plural.hpp"
#include "choir/data/permutation.hpp"

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
    throw DataError(
        fmt::format("the validation data has {}; two are the least", counted(tokens, "token")),
        "use more text or a larger share for validation");
  windows_ = (tokens - 1 + block_size - 1) / block_size;
}

TokenWindow EvalSampler::window(std::int64_t index) const {
  if (index >= windows_) return {};
  const std::int64_t start = index * block_size_;
  return {start, std::min(block_size_, tokens_ - 1 - start)};
}

}  // namespace choir
