#pragma once
// Conversion of f16 to and from vectors of float, of 64, 32 or 16 bytes: one instruction if the
// build has it (F16C, AVX-512), else lane by lane in integers. Rounds as f16(float) does, whatever
// the rounding mode of the thread.
#include "choir/core/dtype.hpp"
#if defined(__F16C__)
#include <immintrin.h>
#endif

// Vectors are only passed between inlined functions, so the calling convention does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace choir {

template <class V>
inline V load_f16(const f16* from) {
  constexpr int kLanes = static_cast<int>(sizeof(V) / sizeof(float));
#if defined(__AVX512F__)
  if constexpr (kLanes == 16)
    return (V)_mm512_maskz_cvtph_ps(0xffff,
                                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#endif
#if defined(__F16C__)
  if constexpr (kLanes == 8)
    return (V)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  if constexpr (kLanes == 4)
    return (V)_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#endif
  V v{};
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(from[i]);
  return v;
}

template <class V>
inline void store_f16(f16* to, V v) {
  constexpr int kLanes = static_cast<int>(sizeof(V) / sizeof(float));
  [[maybe_unused]] constexpr int kNearestEven = 0;
#if defined(__AVX512F__)
  if constexpr (kLanes == 16) {
    const __m256i halves = _mm512_maskz_cvtps_ph(0xffff, (__m512)v, kNearestEven);
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }
#endif
#if defined(__F16C__)
  if constexpr (kLanes == 8)
    return _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                            _mm256_cvtps_ph((__m256)v, kNearestEven));
  if constexpr (kLanes == 4)
    return _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_cvtps_ph((__m128)v, kNearestEven));
#endif
  for (int i = 0; i < kLanes; ++i) to[i] = f16(v[i]);
}

}  // namespace choir
