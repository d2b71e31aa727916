#pragma once
// Helpers of relative-position attention on the GPU; formulas and floors in
// kernels/relative_attention/relative_attention.hpp. All are memory-bound and read what lies together with
// neighbouring threads; rows of scores have odd lengths, so elements go one by one.
#include "kernels/cuda/access.cuh"
#include "kernels/relative_attention/relative_attention.hpp"

namespace choir::cuda {

/// A thread per (distance, pair): both signs of the distance.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    relative_positions_kernel(std::int64_t tokens, int half, const float* tables, T* out) {
  const std::int64_t width = 2 * std::int64_t{half};
  for (std::int64_t e = global_thread(); e < tokens * half; e += global_threads()) {
    const std::int64_t p = e / half, c = e % half;
    const float* fine = tables + p % kFinePositions * width;
    const float* coarse = tables + (kFinePositions + p / kFinePositions) * width;
    const float sine = fine[c] * coarse[half + c] + fine[half + c] * coarse[c];
    const float cosine = fine[half + c] * coarse[half + c] - fine[c] * coarse[c];
    T *before = out + (tokens - 1 - p) * width + 2 * c,
      *after = out + (tokens - 1 + p) * width + 2 * c;
    after[0] = from_float<T>(-sine), after[1] = from_float<T>(cosine);
    before[0] = from_float<T>(sine), before[1] = from_float<T>(cosine);
  }
}

template <class T>
struct RelativeQueriesArguments {
  T* rows;
  const T *content, *position;
  T* shifted;
  std::int64_t count, row;  ///< rows, and elements of one
  int heads, width;
  float scale;
};

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    relative_queries_kernel(RelativeQueriesArguments<T> a) {
  const int all = a.heads * a.width;
  for (std::int64_t e = global_thread(); e < a.count * all; e += global_threads()) {
    const std::int64_t n = e / all;
    const int i = static_cast<int>(e % all);
    T& q = a.rows[n * a.row + i];
    const float x = to_float(q);
    a.shifted[(i / a.width * a.count + n) * a.width + i % a.width] =
        from_float<T>((x + to_float(a.position[i])) * a.scale);
    q = from_float<T>(x + to_float(a.content[i]));
  }
}

template <class T>
struct RelativeQueriesBackwardArguments {
  T* d_rows;
  const T* d_shifted;
  float* partials;  ///< per block: stride sums for u, stride for v
  std::int64_t count, row, rows_per_block, stride;
  int heads, width;
  float scale;
};

/// A block of rows by blockIdx.x; a thread keeps columns of its own, so that their sums are in the
/// order of the rows.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    relative_queries_backward_kernel(RelativeQueriesBackwardArguments<T> a) {
  const int all = a.heads * a.width;
  const std::int64_t first = blockIdx.x * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.count);
  float* sums = a.partials + blockIdx.x * 2 * a.stride;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += static_cast<int>(blockDim.x)) {
    const T* shifted = a.d_shifted + i / a.width * a.count * a.width + i % a.width;
    float u = 0, v = 0;
    for (std::int64_t n = first; n < last; ++n) {
      T& q = a.d_rows[n * a.row + i];
      const float d = to_float(q), more = to_float(shifted[n * a.width]) * a.scale;
      u += d;
      v += more;
      q = from_float<T>(d + more);
    }
    sums[i] = u;
    sums[a.stride + i] = v;
  }
}

template <class T>
struct UnshiftArguments {
  const T* d_bias;
  T* d_scores;
  std::int64_t batch, heads, tokens;
};

/// A block per row of scores, as far as there are blocks.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    unshift_scores_kernel(UnshiftArguments<T> a) {
  const std::int64_t width = 2 * a.tokens - 1;
  for (std::int64_t r = blockIdx.x; r < a.heads * a.batch * a.tokens; r += gridDim.x) {
    const std::int64_t i = r % a.tokens, b = r / a.tokens % a.batch, h = r / a.tokens / a.batch;
    const T* from = a.d_bias + ((b * a.heads + h) * a.tokens + i) * a.tokens;
    for (std::int64_t k = threadIdx.x; k < width; k += blockDim.x) {
      const std::int64_t j = k + i - (a.tokens - 1);
      a.d_scores[r * width + k] = j < 0 || j >= a.tokens ? from_float<T>(0.0f) : from[j];
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    mask_scores_kernel(std::int64_t rows, std::int64_t tokens, ops::AttentionContext context,
                       T* scores) {
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const std::int64_t i = r % tokens;
    const SeenKeys seen = seen_keys(context, i, tokens);
    T* keys = scores + r * (2 * tokens - 1) + (tokens - 1 - i);
    for (std::int64_t j = threadIdx.x; j < tokens; j += blockDim.x)
      if (j < seen.first || j >= seen.end) keys[j] = from_float<T>(-INFINITY);
  }
}

}  // namespace choir::cuda
