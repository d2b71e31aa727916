#pragma once
// Values and slopes of the nonlinearities for one element on the GPU, with the arithmetic that fits
// the type of the elements. Formulas: kernels/activation/activation.hpp.

#include "kernels/activation/activation.hpp"
#include "kernels/cpu/normal_tail.hpp"
#include "kernels/cuda/ptx.cuh"

namespace choir::cuda {

/// For f32: expf (2 ulp) and division.
struct FullMath {
  __device__ static float exp(float x) { return expf(x); }
  __device__ static float reciprocal(float x) { return 1.0f / x; }
  __device__ static float tail(float u) { return half_scaled_erfc(u); }
};

/// For 16-bit types. Errors: exp 2^-22 plus the rounding of the argument, |x| 2^-23; reciprocal
/// 2^-22 (0 from 2^126 on); tail 2.8e-6. The total is below 1e-5 of the result where |x| < 6, and
/// below 1e-5 absolutely beyond.
struct ShortMath {
  __device__ static float exp(float x) { return ptx::exp2_approx(x * 1.44269504f); }
  __device__ static float reciprocal(float x) { return __fdividef(1.0f, x); }
  __device__ static float tail(float u) { return short_half_scaled_erfc(u); }
};
template <class T>
using MathFor = std::conditional_t<sizeof(T) == 2, ShortMath, FullMath>;

/// A distribution: the probability of values below x and the density at x, both without
/// cancellation.
struct BelowAndDensity {
  float below, density;
};

template <class Math>
__device__ inline BelowAndDensity normal(float x) {
  const float e = Math::exp(-0.5f * x * x);
  const float u = Math::reciprocal(1.0f + 0.282842712f * fabsf(x));  // 0.4 / sqrt(2)
  const float tail = e * Math::tail(u);
  return {x < 0.0f ? tail : 1.0f - tail, e * 0.398942280f};
}

template <class Math>
__device__ inline BelowAndDensity logistic(float x) {
  const float e = Math::exp(-fabsf(x)), r = Math::reciprocal(1.0f + e);
  return {x < 0.0f ? e * r : r, e * r * r};
}

template <class Math>
__device__ inline float sigmoid(float x) {
  return Math::reciprocal(1.0f + Math::exp(-x));
}

template <class Math>
struct Gelu {
  __device__ static float value(float x) { return x * normal<Math>(x).below; }
  __device__ static float slope(float x) {
    const BelowAndDensity p = normal<Math>(x);
    return p.below + x * p.density;
  }
};

/// x s(z), z = 2u(x). In forward, an infinite z gives exactly 0 or x. In the slope, 0 * inf must
/// not occur, so x is clamped to 30, beyond which s is 0 or 1 to all digits. NaN is preserved.
template <class Math>
struct GeluTanh {
  static constexpr float kTwoRootTwoOverPi = 1.59576912f, kCubic = 0.044715f;
  __device__ static float argument(float x) { return kTwoRootTwoOverPi * (x + kCubic * x * x * x); }
  __device__ static float value(float x) { return x * below(x); }
  __device__ static float below(float x) { return sigmoid<Math>(argument(x)); }
  __device__ static float slope(float x) { return parts(x).density; }
  /// s and the slope.
  __device__ static BelowAndDensity parts(float x) {
    const float low = x < -30.0f ? -30.0f : x, c = low > 30.0f ? 30.0f : low;
    const BelowAndDensity p = logistic<Math>(argument(c));
    return {p.below, p.below + c * p.density * kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * c * c)};
  }
};

template <class Math>
struct Silu {
  __device__ static float value(float x) { return x * below(x); }
  __device__ static float below(float x) { return sigmoid<Math>(x); }
  __device__ static float slope(float x) { return parts(x).density; }
  __device__ static BelowAndDensity parts(float x) {
    const BelowAndDensity p = logistic<Math>(x);
    return {p.below, p.below + x * p.density};
  }
};

template <class Math>
struct Relu {
  __device__ static float value(float x) { return x < 0.0f ? 0.0f : x; }
  __device__ static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};

/// Calls f(F{}), where F is the function of one input of this kind.
template <class T, class F>
inline void with_function(ops::Activation kind, const F& f) {
  switch (kind) {
    case ops::Activation::gelu:
      return f(Gelu<MathFor<T>>{});
    case ops::Activation::gelu_tanh:
      return f(GeluTanh<MathFor<T>>{});
    case ops::Activation::relu:
      return f(Relu<MathFor<T>>{});
    case ops::Activation::silu:
      return f(Silu<MathFor<T>>{});
    case ops::Activation::swiglu:
    case ops::Activation::geglu:
      break;
  }
}

}  // namespace choir::cuda
