#pragma once
// A keyed permutation of [0, n) that is computed, not stored. It is a balanced Feistel network of
// four rounds (Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom
// functions", 1988) with Philox as round function, on the smallest even number of bits that can
// hold n. Values outside [0, n) are encrypted again until they fall inside (cycle walking; fewer
// than four times on average).

#include <cstdint>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"

namespace choir {

class Permutation {
 public:
  /// `number` selects one of 2^62 permutations under one key, for example the epoch.
  Permutation(std::uint64_t n, PhiloxKey key, std::uint64_t number);
  /// The image of `i` < n.
  std::uint64_t operator()(std::uint64_t i) const;

 private:
  std::uint64_t encrypt(std::uint64_t value) const;

  static constexpr std::uint64_t kRounds = 4;
  std::uint64_t n_;
  PhiloxKey key_;
  std::uint64_t number_;
  int half_bits_ = 1;
};

inline Permutation::Permutation(std::uint64_t n, PhiloxKey key, std::uint64_t number)
    : n_(n), key_(key), number_(number) {
  CHOIR_CHECK(n >= 1 && n <= std::uint64_t{1} << 62, "permutation of {}", n);
  while ((std::uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
}

inline std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_, right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const PhiloxBlock words = philox_at(key_, right, number_ * kRounds + round);
    const std::uint64_t next = left ^ (words[0] & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

inline std::uint64_t Permutation::operator()(std::uint64_t i) const {
  CHOIR_CHECK(i < n_, "{} permuted among {}", i, n_);
  do i = encrypt(i);
  while (i >= n_);
  return i;
}

}  // namespace choir
