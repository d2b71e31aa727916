#pragma once
// Random rounding of f32 to bf16 on the GPU, with the bits of kernels/update/random_rounding.hpp.

#include "choir/core/philox.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/update/element_numbers.hpp"

namespace choir::cuda {

/// Rounds by the lower 16 bits to one of the two bf16 neighbours, as f32; NaN is preserved.
__device__ inline float round_at_random(float x, std::uint32_t random) {
  if (x != x) return x;
  return __uint_as_float((__float_as_uint(x) + (random & 0xffffu)) & 0xffff0000u);
}

/// The random words of kWide elements from i on. Several elements must have consecutive numbers
/// from a multiple of 4 on (has_packs).
template <int kWide>
__device__ inline void draw_words(PhiloxKey key, const ops::ElementNumbers& elements,
                                  std::uint64_t update, std::int64_t i,
                                  std::uint32_t (&words)[kWide]) {
  const auto element = static_cast<std::uint64_t>(elements.at(i));
  if constexpr (kWide == 1) {
    const PhiloxBlock block = philox_at(key, element / 4, update);
    words[0] = block[0];  // avoids an array in memory, which a variable index would need
#pragma unroll
    for (unsigned j = 1; j < 4; ++j)
      if (element % 4 == j) words[0] = block[j];
  } else {
#pragma unroll
    for (int k = 0; k < kWide; k += 4) {
      const PhiloxBlock block = philox_at(key, element / 4 + k / 4, update);
#pragma unroll
      for (int j = 0; j < 4; ++j) words[k + j] = block[j];
    }
  }
}

/// Host: true if packs of `wide` elements have consecutive numbers and use whole Philox calls.
inline bool has_packs(const ops::ElementNumbers& e, int wide) {
  const std::int64_t first = e.width == 0 ? e.first + e.column : e.first;
  return first % 4 == 0 && e.stride % 4 == 0 && e.width % wide == 0 &&
         (e.width == 0 || e.column % wide == 0);
}

}  // namespace choir::cuda
