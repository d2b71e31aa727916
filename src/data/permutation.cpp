#include "choir/data/permutation.hpp"

#include "choir/core/error.hpp"

namespace choir {
namespace {
constexpr std::uint64_t kRounds = 4;
}

Permutation::Permutation(std::uint64_t n, PhiloxKey key, std::uint64_t number)
    : n_(n), key_(key), number_(number) {
  CHOIR_CHECK(n >= 1 && n <= std::uint64_t{1} << 62, "permutation of {}", n);
  while ((std::uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
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

std::uint64_t Permutation::operator()(std::uint64_t i) const {
  CHOIR_CHECK(i < n_, "{} permuted among {}", i, n_);
  do i = encrypt(i);
  while (i >= n_);
  return i;
}

}  // namespace choir
