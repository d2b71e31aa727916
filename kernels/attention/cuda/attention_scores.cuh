#pragma once
// Scores of one warp in registers, rows along queries or along keys: initial values and mask. In
// every 16 x 8 tile lane l holds the elements (l / 4 + 8 half, l % 4 * 2 + i), at [2 half + i].
#include "kernels/attention/cuda/attention_tiles.cuh"

namespace choir::cuda {

constexpr float kLn2 = 0.69314718055994530942f;

/// Initial scores of queries from `query` on (rows) and keys from `key` on (columns), before the
/// product: bias / scale, so that the sum times the scale is the input of softmax and no other code
/// depends on a bias. All loads are in flight at once while the block waits for its tiles: none is
/// behind a branch. Elements outside belong to a neighbour; they are masked, or their row is
/// unused.
template <AttentionPath kPath, class T, int kM, int kN>
__device__ inline void start_scores(float (&scores)[kM][kN][4], const AttentionArgs<T>& a,
                                    const T* bias, int query, int key) {
  if (kPath == AttentionPath::plain || !bias) return set_zero(scores);
  const int row = query + lane_index() / 4, column = key + lane_index() % 4 * 2;
  const auto row_of = [&](int m, int half) {
    return bias + min(row + 16 * m + 8 * half, a.queries - 1) * a.bias_query;
  };
  if (a.bias_pairs) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const T* const from = row_of(m, half);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const int j = min(column + 8 * n, a.keys - 2);
          const std::uint32_t pair = *reinterpret_cast<const std::uint32_t*>(from + j);
          scores[m][n][2 * half] = ptx::unpack_low<T>(pair) * a.unscale;
          scores[m][n][2 * half + 1] = ptx::unpack_high<T>(pair) * a.unscale;
        }
      }
  } else {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const T* const from = row_of(m, half);
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            scores[m][n][2 * half + i] =
                to_float(from[min(column + 8 * n + i, a.keys - 1)]) * a.unscale;
      }
  }
}

/// The same with keys along rows and queries along columns.
template <AttentionPath kPath, class T, int kM, int kN>
__device__ inline void start_scores_transposed(float (&scores)[kM][kN][4],
                                               const AttentionArgs<T>& a, const T* bias, int key,
                                               int query) {
  if (kPath == AttentionPath::plain || !bias) return set_zero(scores);
  const int row = key + lane_index() / 4, column = query + lane_index() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const T* const from = bias + min(column + 8 * n + i, a.queries - 1) * a.bias_query;
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          scores[m][n][2 * half + i] =
              to_float(from[min(row + 16 * m + 8 * half, a.keys - 1)]) * a.unscale;
    }
}

/// Writes -inf if the query of the row does not see the key of the column.
template <int kM, int kN>
__device__ inline void mask_scores(float (&scores)[kM][kN][4], const KeyLimit& limit, int query,
                                   int key) {
  // Relative to this lane's first key, so that no value that changes from tile to tile is kept in
  // registers.
  const int row = query + lane_index() / 4;
  const KeyLimit here = limit.seen_from(key + lane_index() % 4 * 2);
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int seen = here(row + 16 * m + 8 * half);
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (8 * n + i >= seen) scores[m][n][2 * half + i] = -INFINITY;
    }
}

/// The same with keys along rows and queries along columns.
template <int kM, int kN>
__device__ inline void mask_scores_transposed(float (&scores)[kM][kN][4], const KeyLimit& limit,
                                              int key, int query) {
  const int column = query + lane_index() % 4 * 2;
  const KeyLimit here = limit.seen_from(key + lane_index() / 4);
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int seen = here(column + 8 * n + i);
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (16 * m + 8 * half >= seen) scores[m][n][2 * half + i] = -INFINITY;
    }
}

/// Writes -inf if the key of the column is before the window or the document of the row's query.
template <int kM, int kN>
__device__ inline void mask_window(float (&scores)[kM][kN][4], const KeyLimit& limit, int query,
                                   int key) {
  const int row = query + lane_index() / 4;
  const KeyLimit here = limit.seen_from(key + lane_index() % 4 * 2);
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first = here.first(row + 16 * m + 8 * half);
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (8 * n + i < first) scores[m][n][2 * half + i] = -INFINITY;
    }
}

/// The same with keys along rows and queries along columns.
template <int kM, int kN>
__device__ inline void mask_window_transposed(float (&scores)[kM][kN][4], const KeyLimit& limit,
                                              int key, int query) {
  const int column = query + lane_index() % 4 * 2;
  const KeyLimit here = limit.seen_from(key + lane_index() / 4);
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int first = here.first(column + 8 * n + i);
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (16 * m + 8 * half < first) scores[m][n][2 * half + i] = -INFINITY;
    }
}

/// First key of the first tile of kKeys keys for a block whose first query is `query`.
template <AttentionPath kPath, int kKeys>
__device__ inline int first_key_of_tiles(const KeyLimit& limit, int query) {
  if constexpr (kPath == AttentionPath::plain) return 0;
  return max(limit.first(query), 0) / kKeys * kKeys;
}

/// A row's log of the sum of exponentials in units of raw scores, the offset of scores in backward;
/// +inf for a row without visible keys (or an unused row), which turns every probability into 0.
template <class T>
__device__ inline float raw_sum(const AttentionArgs<T>& a, float log_sum_exp) {
  return log_sum_exp == -INFINITY ? INFINITY : log_sum_exp * a.unscale;
}

/// Turns scores below their row's sum, and dP below its delta, into P and dS.
template <int kM, int kN>
__device__ inline void as_gradients(float (&scores)[kM][kN][4], float (&d_p)[kM][kN][4],
                                    float scale_log2) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[m][n][i] = ptx::exp2_approx(scores[m][n][i] * scale_log2);
        d_p[m][n][i] *= scores[m][n][i];
      }
}

}  // namespace choir::cuda
