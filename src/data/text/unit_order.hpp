#pragma once
// The order of tokens in training without a prepared copy. In each epoch the units of a source are
// permuted by key, and the tokens of a unit keep their order. The epoch is a sequence of N tokens:
//   n          = floor((N - 1) / T)                      windows, the same in every epoch
//   sample i   : epoch = i / n, tokens [w T, w T + T],   w = i mod n, of the epoch's sequence
// Neighbours share one token, the last target of one and the first input of the next. Fewer than T
// targets at the end of an epoch are left out; the permutation makes them others in each epoch.

#include <cstdint>
#include <map>
#include <vector>

#include "choir/core/philox.hpp"

namespace choir {

/// A pure function of (seed, tokens of the units); it caches epochs, so one thread at a time uses
/// it.
class UnitOrder {
 public:
  /// Throws DataError for fewer than block_size + 1 tokens.
  UnitOrder(std::vector<std::int64_t> tokens_of_units, std::int64_t block_size, std::uint64_t seed);

  std::int64_t windows_per_epoch() const { return windows_; }
  std::int64_t units() const { return std::ssize(tokens_); }

  /// The unit at a place in the order of all epochs: epoch `place` / units(), in which it is number
  /// `place` mod units(). Pure; threads may call it.
  std::size_t unit_at(std::int64_t place) const;

  /// Tokens [first, first + count) of the unit at `place`.
  struct Piece {
    std::int64_t place = 0, first = 0, count = 0;
  };
  /// Consecutive samples of one epoch, whose tokens are those of the pieces in order.
  struct Segment {
    std::int64_t sample = 0, samples = 0;
    std::vector<Piece> pieces;
  };
  /// The tokens of samples [first, first + count): one segment for each epoch.
  std::vector<Segment> segments(std::int64_t first, std::int64_t count);

 private:
  /// The first token of each unit of an epoch, in its order, and the end.
  const std::vector<std::int64_t>& begins_of(std::int64_t epoch);

  std::vector<std::int64_t> tokens_;
  std::int64_t block_size_, windows_ = 0;
  PhiloxKey key_;
  std::map<std::int64_t, std::vector<std::int64_t>> begins_;  ///< of the last epochs
};

}  // namespace choir
