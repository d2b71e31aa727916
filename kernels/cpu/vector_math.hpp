#pragma once
// exp, log, tanh, erf and related functions on whole vectors. Single precision: polynomials fitted
// to minimise the largest relative error, at most 2 ulp from the exact value over the whole range
// (tested), NaN and infinities as in the C library. Double precision: the C library, lane by lane.

#include <cmath>
#include <type_traits>

#include "kernels/cpu/normal_tail.hpp"
#include "kernels/cpu/simd.hpp"

namespace choir::cpu {

template <class V, class F>
inline V each_lane(V x, F f) {
  for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); ++i) x[i] = f(x[i]);
  return x;
}

inline Floats abs(Floats x) {
  return (Floats)((Words)x & 0x7fffffffu);
}
inline Doubles abs(Doubles x) {
  return x < 0.0 ? -x : x;
}
inline Floats copy_sign(Floats magnitude, Floats sign) {
  return (Floats)((Words)magnitude | ((Words)sign & 0x80000000u));
}

inline Floats sqrt(Floats x) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return _mm512_maskz_sqrt_ps(0xffff, x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
  return each_lane(x, [](float v) { return std::sqrt(v); });
#endif
}
inline Doubles sqrt(Doubles x) {
  return each_lane(x, [](double v) { return std::sqrt(v); });
}

/// x * 2^n for integral n in [-300, 300], with a single rounding for subnormal results.
inline Floats scale_by_power(Floats x, Floats n) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return _mm512_maskz_scalef_ps(0xffff, x, n);
#else
  const Ints whole = __builtin_convertvector(n, Ints), half = whole >> 1;
  const Floats a = (Floats)((half + 127) << 23), b = (Floats)((whole - half + 127) << 23);
  return x * a * b;
#endif
}

/// Uses x = n ln2 + r with |r| <= ln2 / 2; e^r = 1 + r + r^2 P(r).
inline Floats exp(Floats x) {
  x = x < -105.0f ? Floats{} - 105.0f : x;  // e^-105 rounds to 0
  x = x > 89.0f ? Floats{} + 89.0f : x;     // e^89 is infinite
  constexpr float kMagic = 12582912.0f;     // 1.5 * 2^23: adding it rounds to an integer
  const Floats n = (x * 1.44269504f + kMagic) - kMagic;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  const Floats p = polynomial(r, 1.381431823e-03f, 8.368851617e-03f, 4.166840017e-02f,
                              1.666651964e-01f, 4.999999404e-01f);
  return scale_by_power((r * r) * p + r + 1.0f, n);
}
inline Doubles exp(Doubles x) {
  return each_lane(x, [](double v) { return std::exp(v); });
}

/// Uses x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); s = f / (2 + f) and the odd series of
/// atanh(s).
inline Floats log(Floats x) {
  const Floats scaled = x < 0x1p-126f ? x * 0x1p23f : x;  // subnormals
  const Words bits = (Words)scaled + (0x3f800000u - 0x3f3504f3u);
  const Ints exponent = (Ints)(bits >> 23) - 127;
  const Floats f = (Floats)((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const Floats e =
      __builtin_convertvector(exponent, Floats) - (x < 0x1p-126f ? Floats{} + 23.0f : Floats{});
  const Floats s = f / (f + 2.0f), z = s * s, half_square = 0.5f * f * f;
  const Floats series = z * polynomial(z, 2.987917066e-01f, 3.997728527e-01f, 6.666677594e-01f);
  Floats y =
      e * 0.693359375f + ((s * (half_square + series) + e * -2.12194440e-4f) - half_square + f);
  y = x == 0.0f ? Floats{} - INFINITY : y;
  y = x < 0.0f ? Floats{} + NAN : y;
  return x < INFINITY ? y : x;  // +inf and NaN
}
inline Doubles log(Doubles x) {
  return each_lane(x, [](double v) { return std::log(v); });
}

/// Uses an odd polynomial near 0, else 1 - 2 / (e^2x + 1).
inline Floats tanh(Floats x) {
  const Floats a = abs(x), z = x * x;
  const Floats p = polynomial(z, -5.704978481e-03f, 2.063907869e-02f, -5.373971164e-02f,
                              1.333144158e-01f, -3.333328068e-01f);
  const Floats small = x + x * z * p;
  const Floats large = copy_sign(1.0f - 2.0f / (exp(2.0f * a) + 1.0f), x);
  return a < 0.625f ? small : large;
}
inline Doubles tanh(Doubles x) {
  return each_lane(x, [](double v) { return std::tanh(v); });
}

/// The logistic distribution: probability of a value below x (the sigmoid) and density at x, both
/// without cancellation.
template <class V>
struct Logistic {
  V below, density;
};
template <class V>
inline Logistic<V> logistic(V x) {
  const V e = exp(-abs(x)), r = 1 / (1 + e);
  return {x < 0 ? e * r : r, e * r * r};
}
/// The same without the density: cheaper, and as accurate.
template <class V>
inline V sigmoid(V x) {
  return 1 / (1 + exp(-x));
}

/// For results that are rounded to bf16 (2^-9) at once: fewer terms and no division, which is the
/// slowest instruction of these functions. The error is 6e-6 (exp 2.6e-6, scaled erfc 2.8e-6), so
/// rounding to bf16 still dominates, even if a sum of two terms cancels.
inline Floats short_reciprocal(Floats x) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  const Floats r = _mm512_maskz_rcp14_ps(0xffff, x);
  return r * (2.0f - x * r);
#else
  return 1.0f / x;
#endif
}
inline Floats short_exp(Floats x) {
  x = x < -105.0f ? Floats{} - 105.0f : x;
  constexpr float kMagic = 12582912.0f;  // as in exp
  const Floats n = (x * 1.44269504f + kMagic) - kMagic;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  return scale_by_power(polynomial(r, 4.145858546e-02f, 1.679090709e-01f, 5.000435893e-01f,
                                   9.999634050e-01f, 9.999992614e-01f),
                        n);
}

inline Floats erf(Floats x) {
  const Floats a = abs(x), z = x * x;
  const Floats p =
      polynomial(z, 7.853857824e-05f, -8.010192541e-04f, 5.188327748e-03f, -2.685381100e-02f,
                 1.128358543e-01f, -3.761262596e-01f, 1.283791661e-01f);
  const Floats large = 1.0f - 2.0f * exp(-z) * half_scaled_erfc(1.0f / (1.0f + 0.4f * a));
  return a < 1.0f ? x + x * p : copy_sign(large, x);
}
inline Doubles erf(Doubles x) {
  return each_lane(x, [](double v) { return std::erf(v); });
}

/// The standard normal distribution: probability of a value below x, and density at x. The lower
/// tail keeps its relative accuracy (a few ulp, growing as x^2), which 1 + erf(x) does not.
template <class V>
struct Normal {
  V below, density;
};
inline Normal<Floats> normal(Floats x) {
  const Floats a = abs(x);
  const Floats e = exp(-0.5f * x * x);
  const Floats u = 1.0f / (1.0f + 0.282842712f * a);  // 0.4 / sqrt(2)
  const Floats tail = e * half_scaled_erfc(u);
  return {x < 0.0f ? tail : 1.0f - tail, e * 0.398942280f};
}
inline Normal<Floats> short_normal(Floats x) {
  const Floats e = short_exp(-0.5f * x * x);
  const Floats u = short_reciprocal(1.0f + 0.282842712f * abs(x));
  const Floats tail = e * short_half_scaled_erfc(u);
  return {x < 0.0f ? tail : 1.0f - tail, e * 0.398942280f};
}
inline Normal<Doubles> normal(Doubles x) {
  return {each_lane(x, [](double v) { return 0.5 * std::erfc(-v * M_SQRT1_2); }),
          each_lane(x, [](double v) { return 0.39894228040143267794 * std::exp(-0.5 * v * v); })};
}

// The logistic function, with the accuracy that results of type T can represent.

/// For results that are rounded to bf16 at once; the relative error is 6e-6.
inline Logistic<Floats> short_logistic(Floats x) {
  const Floats e = short_exp(-abs(x)), r = short_reciprocal(1.0f + e);
  return {x < 0.0f ? e * r : r, e * r * r};
}

template <class T>
inline Logistic<Vec<T>> logistic_for(Vec<T> x) {
  if constexpr (std::is_same_v<T, bf16>)
    return short_logistic(x);
  else
    return logistic(x);
}

}  // namespace choir::cpu
