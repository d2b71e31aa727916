#pragma once
// The nonlinearities on the GPU; formulas in kernels/activation/activation.hpp. Floor per output
// element: forward 2 element transfers (swiglu 3), backward 3 (5). At 4.3 TB/s an H200 has about 28
// (forward) to 43 (backward) instructions per 16-bit element before arithmetic becomes the limit:
// the 16-bit forms use the approximate exponential and reciprocal and the short polynomial (about
// 20), f32 the exact ones.
#include "kernels/cpu/normal_tail.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/early_launch.cuh"

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
  __device__ static float value(float x) { return x * sigmoid<Math>(argument(x)); }
  __device__ static float slope(float x) {
    const float low = x < -30.0f ? -30.0f : x, c = low > 30.0f ? 30.0f : low;
    const BelowAndDensity p = logistic<Math>(argument(c));
    return p.below + c * p.density * kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * c * c);
  }
};

template <class Math>
struct Silu {
  __device__ static float value(float x) { return x * sigmoid<Math>(x); }
  __device__ static float slope(float x) {
    const BelowAndDensity p = logistic<Math>(x);
    return p.below + x * p.density;
  }
};

template <class Math>
struct Relu {
  __device__ static float value(float x) { return x < 0.0f ? 0.0f : x; }
  __device__ static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};

template <class T, bool kPacked, class F>
__global__ void __launch_bounds__(kElementwiseThreads)
    activation_forward_kernel(std::int64_t n, const T* x, T* y) {
  let_next_begin();
  wait_for_earlier();
  map_flat<T, kPacked, 1>(n, {x}, y, [](float v) { return F::value(v); });
}

template <class T, bool kPacked, class F>
__global__ void __launch_bounds__(kElementwiseThreads)
    activation_backward_kernel(std::int64_t n, const T* x, const T* d_y, T* d_x) {
  map_flat<T, kPacked, 2>(n, {x, d_y}, d_x, [](float v, float d) { return d * F::slope(v); });
}

/// y [rows, F] = silu(gate) up, x [rows, gate F | up F]; fewer than 2^31 elements of y. `per_row`
/// divides by the number of packs in a row.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    swiglu_forward_kernel(std::uint32_t packs, Divisor per_row, const T* x, T* y) {
  using Wide = Access<T, kPacked>;
  let_next_begin();
  wait_for_earlier();
  using Math = MathFor<T>;
  constexpr int kWide = Wide::kWide;
  const std::int64_t width = std::int64_t{per_row.divisor} * kWide;
  for (std::int64_t p = global_thread(); p < packs; p += global_threads()) {
    const T* gate =
        x + (p + per_row.quotient(static_cast<std::uint32_t>(p)) * std::int64_t{per_row.divisor}) *
                kWide;
    const typename Wide::Raw raw_gate = Wide::read(gate), raw_up = Wide::read(gate + width);
    float g[kWide], up[kWide], out[kWide];
    Wide::unpack(raw_gate, g), Wide::unpack(raw_up, up);
#pragma unroll
    for (int i = 0; i < kWide; ++i) out[i] = g[i] * sigmoid<Math>(g[i]) * up[i];
    Wide::store(y + p * kWide, out);
  }
}

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    swiglu_backward_kernel(std::uint32_t packs, Divisor per_row, const T* x, const T* d_y, T* d_x) {
  using Wide = Access<T, kPacked>;
  using Math = MathFor<T>;
  constexpr int kWide = Wide::kWide;
  const std::int64_t width = std::int64_t{per_row.divisor} * kWide;
  for (std::int64_t p = global_thread(); p < packs; p += global_threads()) {
    const std::int64_t gate =
        (p + per_row.quotient(static_cast<std::uint32_t>(p)) * std::int64_t{per_row.divisor}) *
        kWide;
    const typename Wide::Raw raw_gate = Wide::read(x + gate), raw_up = Wide::read(x + gate + width),
                             raw_d = Wide::read(d_y + p * kWide);
    float g[kWide], up[kWide], d[kWide];
    Wide::unpack(raw_gate, g), Wide::unpack(raw_up, up), Wide::unpack(raw_d, d);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const BelowAndDensity s = logistic<Math>(g[i]);
      const float d_up = d[i] * g[i] * s.below;
      g[i] = d[i] * up[i] * (s.below + g[i] * s.density);
      up[i] = d_up;
    }
    Wide::store(d_x + gate, g), Wide::store(d_x + gate + width, up);
  }
}

}  // namespace choir::cuda
