#pragma once
// Vectors of the width for which this build is compiled, with loads and stores of every element
// type (f16 by one instruction if the build has it, F16C or AVX-512, else lane by lane in integers,
// rounded as f16(float) is), and permutations of their lanes: transposes of squares, and the sums
// of many vectors at once. GCC vector extensions: the same source runs at 64, 32 or 16 bytes.
// Intrinsics are only used if the compiler does not find the best instruction. GCC 12 treats lanes
// that a loop fills as variables, and then assembles the permutation one by one at every use;
// lanes_of() is a constant.

#include <cstdint>
#include <cstring>
#include <utility>

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

namespace choir::cpu {

template <class V>
inline constexpr int kLanesOf = sizeof(V) / sizeof(V{}[0]);

/// The vector {lane(0), lane(1), ...}.
template <class V, class Lane>
consteval V lanes_of(Lane lane) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return V{static_cast<decltype(V{}[0] + V{}[0])>(lane(i))...};
  }
  (std::make_integer_sequence<int, kLanesOf<V>>());
}

/// Lane i is lane(i) of a, or of b for indices past the last lane of a; `lane` captures nothing.
template <class V, class Lane>
inline V shuffled(V a, V b, Lane) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, Lane{}(i)...);
  }
  (std::make_integer_sequence<int, kLanesOf<V>>());
}

/// The first (0) or second (1) half of a[0], b[0], a[1], b[1] ...
template <int kHalf, class V>
inline V interleave(V a, V b) {
  return shuffled(a, b,
                  [](int i) { return i / 2 + (i % 2) * kLanesOf<V> + kHalf * kLanesOf<V> / 2; });
}

/// Exchanges v[i][j] and v[j][i], for as many vectors as they have lanes. Every step doubles the
/// number of adjacent elements of a column.
template <class V>
inline void transpose_square(V* v) {
  constexpr int kCount = kLanesOf<V>;
#pragma GCC unroll 4
  for (int size = 1; size < kCount; size *= 2) {
    V next[kCount];
#pragma GCC unroll 16
    for (int i = 0; i < kCount / 2; ++i) {
      next[2 * i] = interleave<0>(v[i], v[i + kCount / 2]);
      next[2 * i + 1] = interleave<1>(v[i], v[i + kCount / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) v[i] = next[i];
  }
}

/// Lane i is the sum of the lanes of v[i], for as many vectors as they have lanes; v is
/// overwritten. Every sum is computed in the same order.
template <class V>
inline V sums_of_lanes(V* v) {
#pragma GCC unroll 4
  for (int half = kLanesOf<V> / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i)
      v[i] = interleave<0>(v[i], v[i + half]) + interleave<1>(v[i], v[i + half]);
  return v[0];
}

}  // namespace choir::cpu

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace choir::cpu {

#if defined(__AVX512F__) && defined(__AVX512BW__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

using Floats = float __attribute__((vector_size(kVectorBytes)));
using Doubles = double __attribute__((vector_size(kVectorBytes)));
using Ints = std::int32_t __attribute__((vector_size(kVectorBytes)));
using Words = std::uint32_t __attribute__((vector_size(kVectorBytes)));
using HalfWords = std::uint16_t __attribute__((vector_size(kVectorBytes / 2)));

/// Type of arithmetic on elements of type T: float, or double for double.
template <class T>
struct Compute {
  using Type = float;
  using Vec = Floats;
};
template <>
struct Compute<double> {
  using Type = double;
  using Vec = Doubles;
};
template <class T>
using Sum = typename Compute<T>::Type;
template <class T>
using Vec = typename Compute<T>::Vec;
template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Sum<T>));

inline Vec<double> load(const double* p) {
  Doubles v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline Vec<float> load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline Vec<bf16> load(const bf16* p) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (Floats)((Words)_mm512_maskz_cvtepu16_epi32(0xffff, h) << 16);
#elif defined(__AVX2__)
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (Floats)((Words)_mm256_cvtepu16_epi32(h) << 16);
#else
  HalfWords h;
  std::memcpy(&h, p, sizeof h);
  return (Floats)(__builtin_convertvector(h, Words) << 16);
#endif
}

inline Vec<f16> load(const f16* p) {
  return load_f16<Floats>(p);
}

/// bf16 bits of every lane, round to nearest even, NaN kept quiet: bf16::round for a vector.
inline Words round_to_bf16(Floats v) {
  const Words u = (Words)v;
  const Words rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return v == v ? rounded : (u >> 16) | 0x40u;
}

inline void store(double* p, Doubles v) {
  std::memcpy(p, &v, sizeof v);
}
inline void store(float* p, Floats v) {
  std::memcpy(p, &v, sizeof v);
}
inline void store(bf16* p, Floats v) {
  const Words u = round_to_bf16(v);
#if defined(__AVX512F__) && defined(__AVX512BW__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)u));
#else
  const HalfWords h = __builtin_convertvector(u, HalfWords);
  std::memcpy(static_cast<void*>(p), &h, sizeof h);
#endif
}
inline void store(f16* p, Floats v) {
  store_f16(p, v);
}

/// Loads the first n lanes from memory; the others are `fill`.
template <class T>
inline Vec<T> load_part(const T* p, std::int64_t n, Sum<T> fill = 0) {
  alignas(kVectorBytes) T buffer[kLanes<T>] = {};
  std::memcpy(static_cast<void*>(buffer), p, static_cast<std::size_t>(n) * sizeof(T));
  Vec<T> v = load(buffer);
  if (fill != 0)
    for (std::int64_t i = n; i < kLanes<T>; ++i) v[i] = fill;
  return v;
}
template <class T>
inline void store_part(T* p, Vec<T> v, std::int64_t n) {
  alignas(kVectorBytes) T buffer[kLanes<T>];
  store(buffer, v);
  std::memcpy(static_cast<void*>(p), buffer, static_cast<std::size_t>(n) * sizeof(T));
}
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
inline __mmask16 first_lanes(std::int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}
template <>
inline Floats load_part<float>(const float* p, std::int64_t n, float fill) {
  return _mm512_mask_loadu_ps(Floats{} + fill, first_lanes(n), p);
}
template <>
inline void store_part<float>(float* p, Floats v, std::int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), v);
}
template <>
inline Floats load_part<bf16>(const bf16* p, std::int64_t n, float fill) {
  const __m256i h = _mm256_maskz_loadu_epi16(first_lanes(n), p);
  const Words bits = (Words)_mm512_maskz_cvtepu16_epi32(0xffff, h) << 16;
  return _mm512_mask_mov_ps(Floats{} + fill, first_lanes(n), (Floats)bits);
}
template <>
inline void store_part<bf16>(bf16* p, Floats v, std::int64_t n) {
  const __m256i h = _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)round_to_bf16(v));
  _mm256_mask_storeu_epi16(p, first_lanes(n), h);
}
template <>
inline Floats load_part<f16>(const f16* p, std::int64_t n, float fill) {
  const __m256i h = _mm256_maskz_loadu_epi16(first_lanes(n), p);
  return _mm512_mask_cvtph_ps(Floats{} + fill, first_lanes(n), h);
}
template <>
inline void store_part<f16>(f16* p, Floats v, std::int64_t n) {
  constexpr int kNearestEven = 0;
  _mm256_mask_storeu_epi16(p, first_lanes(n), _mm512_maskz_cvtps_ph(0xffff, v, kNearestEven));
}
#endif

/// a * b + c, rounded once if this build has the instruction. If left to the compiler, some copies
/// of a loop would round twice and others once.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

template <class V>
inline auto sum_of_lanes(V v) {
  auto sum = v[0];
  for (unsigned i = 1; i < sizeof(V) / sizeof(v[0]); ++i) sum += v[i];
  return sum;
}
template <class V>
inline auto max_of_lanes(V v) {
  auto largest = v[0];
  for (unsigned i = 1; i < sizeof(V) / sizeof(v[0]); ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

/// Access policies of a loop body: whole vectors, or the first n lanes at the end.
struct WholeVectors {
  template <class T>
  Vec<T> load(const T* p, Sum<T> = 0) const {
    return cpu::load(p);
  }
  template <class T>
  void store(T* p, Vec<T> v) const {
    cpu::store(p, v);
  }
};
struct RaggedVector {
  std::int64_t n;
  template <class T>
  Vec<T> load(const T* p, Sum<T> fill = 0) const {
    return load_part(p, n, fill);
  }
  template <class T>
  void store(T* p, Vec<T> v) const {
    store_part(p, v, n);
  }
};

/// Calls body(i, access) for i = first, first + kLanes<T> ... below last.
template <class T, class Body>
inline void for_vectors(std::int64_t first, std::int64_t last, Body body) {
  std::int64_t i = first;
  for (; i + kLanes<T> <= last; i += kLanes<T>) body(i, WholeVectors{});
  if (i < last) body(i, RaggedVector{last - i});
}

}  // namespace choir::cpu
