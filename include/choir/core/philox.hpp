#pragma once
// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC11). Every random number in choir is philox(key(seed, stream), global index). There
// is no generator state, so the layout of ranks and threads cannot change the numbers. The code is
// inline and shared by host and device.
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "choir/core/host_device.hpp"

namespace choir {

struct PhiloxKey {
  std::uint32_t k0 = 0, k1 = 0;
};

using PhiloxBlock = std::array<std::uint32_t, 4>;

/// Ten rounds. Known answers are in the unit test.
CHOIR_HOST_DEVICE inline PhiloxBlock philox(PhiloxKey key, PhiloxBlock counter) {
  constexpr std::uint64_t kM0 = 0xD2511F53u, kM1 = 0xCD9E8D57u;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = kM0 * counter[0], p1 = kM1 * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key.k0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key.k1, static_cast<std::uint32_t>(p0)};
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  return counter;
}

/// Key of a named stream ("init", "dropout", "data" ...): FNV-1a of the name, mixed with the seed.
inline PhiloxKey philox_key(std::uint64_t seed, std::string_view stream) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : stream) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  h += seed * 0x9E3779B97F4A7C15ull;  // then one round of splitmix64
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
  h ^= h >> 31;
  return {static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(h >> 32)};
}

/// Four words for one 64-bit index; `lane` separates uses of the same index.
CHOIR_HOST_DEVICE inline PhiloxBlock philox_at(PhiloxKey key, std::uint64_t index,
                                               std::uint64_t lane = 0) {
  return philox(key, {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                      static_cast<std::uint32_t>(lane), static_cast<std::uint32_t>(lane >> 32)});
}

/// Uniform in [0, 1) with 32 bits.
CHOIR_HOST_DEVICE inline double uniform01(std::uint32_t word) {
  return word * 0x1p-32;
}

/// Standard normal number of one index (Box-Muller in double). The second normal of a pair is
/// dropped, so that element i never depends on its neighbour.
inline double normal_at(PhiloxKey key, std::uint64_t index) {
  const PhiloxBlock r = philox_at(key, index);
  const double u = (r[0] + 1.0) * 0x1p-32;  // (0, 1]
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586476925 * uniform01(r[1]));
}

/// Maps a word of a block to an integer that is uniform in [low, high].
inline int between(std::uint32_t word, int low, int high) {
  const auto span = static_cast<std::uint64_t>(high - low + 1);
  return low + static_cast<int>(word * span >> 32);
}

}  // namespace choir
