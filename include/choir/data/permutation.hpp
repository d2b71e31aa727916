#pragma once
// A keyed permutation of [0, n) that is computed, not stored: a balanced Feistel network of four
// rounds (Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom
// functions", 1988) with Philox as round function, on the smallest even number of bits that holds
// n; values outside [0, n) are encrypted again until they fall inside (cycle walking; fewer than
// four times on average).
#include <cstdint>

#include "choir/core/philox.hpp"

namespace choir {

class Permutation {
 public:
  /// `number` selects one of 2^62 permutations under one key, for example the epoch.
  Permutation(std::uint64_t n, PhiloxKey key, std::uint64_t number);
  /// Place of `i` < n.
  std::uint64_t operator()(std::uint64_t i) const;

 private:
  std::uint64_t encrypt(std::uint64_t value) const;

  std::uint64_t n_;
  PhiloxKey key_;
  std::uint64_t number_;
  int half_bits_ = 1;
};

}  // namespace choir
