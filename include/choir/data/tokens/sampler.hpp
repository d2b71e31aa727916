#pragma once
// Which tokens sample i is made of. Pure functions of (seed, global sample index): no rank, no
// thread and no file boundary enters, so every layout and every reader sees the same batches, and
// resuming needs one integer, the number of samples consumed.
//
// Training. A stream of N tokens is cut, anew for each epoch, into n windows of T+1 tokens;
// neighbours share one token, the last target of one and the first input of the next:
//   n            = max(1, floor((N - T) / T))           the same in every epoch
//   phase(epoch) = uniform in [0, N - 1 - n*T]          at least T values where N >= 2T
//   start(w)     = phase + w*T,  w in [0, n)            inputs [start, start+T), targets one later
//   sample i     : epoch = i / n, w = P_{seed,epoch}(i mod n) with the Permutation of
//   permutation.hpp
// Within an epoch no input position occurs twice; fewer than 2T positions at the two ends are left
// out, other ones each epoch, as the boundaries move.
//
// Evaluation. All windows start(w) = w*T in order, ceil((N-1)/T) of them; the last may be shorter.
#include <cstdint>

#include "choir/core/philox.hpp"

namespace choir {

/// `targets` consecutive (input, target) pairs: needs the tokens [start, start + targets]. 0
/// targets: a row of padding.
struct TokenWindow {
  std::int64_t start = 0;
  std::int64_t targets = 0;
  friend bool operator==(const TokenWindow&, const TokenWindow&) = default;
};

class Sampler {
 public:
  /// Throws DataError for fewer than block_size + 1 tokens.
  Sampler(std::int64_t tokens, std::int64_t block_size, std::uint64_t seed);

  std::int64_t windows_per_epoch() const { return windows_; }
  std::int64_t epoch_of(std::int64_t sample) const { return sample / windows_; }
  std::int64_t phase(std::int64_t epoch) const;
  TokenWindow window(std::int64_t sample) const;

 private:
  std::int64_t tokens_, block_size_, windows_;
  PhiloxKey order_key_, phase_key_;
};

class EvalSampler {
 public:
  /// Throws DataError for fewer than two tokens.
  EvalSampler(std::int64_t tokens, std::int64_t block_size);

  std::int64_t windows() const { return windows_; }
  /// Padding from windows() on.
  TokenWindow window(std::int64_t index) const;

 private:
  std::int64_t tokens_, block_size_, windows_;
};

}  // namespace choir
