#pragma once
// The running softmax of the forward kernels for 16-bit elements, on scores in registers (Milakov &
// Gimelshein 2018), with a maximum that is raised only if it must be (FlashAttention-4, 2025).
#include "kernels/attention/cuda/attention_scores.cuh"
#include "kernels/cuda/collective.cuh"

namespace choir::cuda {

/// Running maximum (of raw scores) and sum of each row; the sum is this lane's share.
template <int kM>
struct OnlineSoftmax {
  float most[kM][2], sum[kM][2];

  __device__ void reset() {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) most[m][half] = -INFINITY, sum[m][half] = 0;
  }

  /// Turns scores into 2^(factor * (score - most)), and updates sums and `out`.
  template <int kN, int kWide>
  __device__ void add(float (&scores)[kM][kN][4], float (&out)[kM][kWide][4], float factor) {
    float next[kM][2];
    if (exceeded(scores, factor, next)) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          rescale(out[m], half, raise(m, half, next[m][half], factor));
    }
    exponents(scores, factor);
  }

  /// Computes the maxima with these scores. Returns true if they must be raised, because some row
  /// of the warp would exceed 2^kSlack. Any reference is exact after the division by the sum, P
  /// keeps its relative precision, and f16 can represent 2^kSlack. So `out` is rescaled in the
  /// first tile and rarely again.
  template <int kN>
  __device__ bool exceeded(const float (&scores)[kM][kN][4], float factor, float (&next)[kM][2]) {
    constexpr float kSlack = 8;
    bool exceeds = false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = most[m][half];
#pragma unroll
        for (int n = 0; n < kN; ++n)
          top = fmaxf(top, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        next[m][half] = warp_reduce<Max, 4>(top);
        exceeds = exceeds || (next[m][half] - most[m][half]) * factor > kSlack;
      }
    return __any_sync(kAllLanes, exceeds);
  }

  /// Raises the maximum of a row; returns the factor of its sum, by which `out` must be multiplied.
  __device__ float raise(int m, int half, float next, float factor) {
    const float shrink =
        next == -INFINITY ? 1.0f : ptx::exp2_approx((most[m][half] - next) * factor);
    most[m][half] = next;
    sum[m][half] *= shrink;
    return shrink;
  }

  template <int kN>
  __device__ void exponents(float (&scores)[kM][kN][4], float factor) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shift = most[m][half] == -INFINITY ? 0.0f : most[m][half] * factor;
        float total = 0;
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            scores[m][n][i] = ptx::exp2_approx(scores[m][n][i] * factor - shift);
            total += scores[m][n][i];
          }
        sum[m][half] += total;
      }
  }

  template <int kWide>
  __device__ static void rescale(float (&out)[kWide][4], int half, float shrink) {
#pragma unroll
    for (int n = 0; n < kWide; ++n) out[n][2 * half] *= shrink, out[n][2 * half + 1] *= shrink;
  }

  /// Finishes the rows: inverse sums (0 for a row without visible keys) and, if requested, the
  /// natural logarithm of the sum of exponentials of the rows from `row` on.
  __device__ void finish(float (&inverse)[kM][2], float factor, float* log_sum_exp, int row,
                         int rows) {
    const int lane = lane_index();
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float total = warp_reduce<Sum, 4>(sum[m][half]);
        inverse[m][half] = total == 0 ? 0.0f : 1.0f / total;
        const int t = row + 16 * m + 8 * half + lane / 4;
        if (log_sum_exp && lane % 4 == 0 && t < rows)
          log_sum_exp[t] = total == 0 ? -INFINITY : most[m][half] * factor * kLn2 + logf(total);
      }
  }
};

}  // namespace choir::cuda
