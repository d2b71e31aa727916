#pragma once
// Building blocks of the attention kernels for 16-bit elements: tiles in shared memory, their loads
// (cp.async) and stores, the two products, each computed by one warp, the scores of a warp in
// registers with their mask, and the running softmax of the forward kernels.
//
// A tile has rows of kWidth elements in chunks of 16 bytes. Chunk c of row r is stored at c ^ (r %
// 8) if a row is a multiple of 128 bytes, at c ^ (r / 2 % 4) if it is one of 64. Then the eight
// rows that one phase of ldmatrix reads are in eight different groups of four banks, and so are the
// chunks that a copy writes.

#include "kernels/attention/cuda/attention_args.cuh"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kAttentionWarps = 4;
constexpr int kAttentionThreads = kAttentionWarps * kWarp;

template <class T, int kRows_, int kWidth_>
struct SharedTile {
  static constexpr int kRows = kRows_, kWidth = kWidth_;
  static constexpr int kChunks = kWidth / kPack<T>;
  static constexpr int kElements = kRows * kWidth;
  /// Chunks that are permuted among each other.
  static constexpr int kGroup = kChunks % 8 == 0 ? 8 : 4;
  static_assert(sizeof(T) == 2 && kChunks % 4 == 0 && kRows % 16 == 0);

  T* data;

  __device__ T* at(int row, int chunk) const {
    const unsigned r = static_cast<unsigned>(row), c = static_cast<unsigned>(chunk);
    const unsigned moved = c ^ (kGroup == 8 ? r % 8 : r / 2 % 4);
    return data + (r * kWidth + moved * kPack<T>);
  }
};

// The division comes before the conversion to int: then the compiler knows the range of the bits
// and folds the addresses below.
__device__ inline int lane_index() {
  return static_cast<int>(threadIdx.x % kWarp);
}
__device__ inline int warp_index() {
  return static_cast<int>(threadIdx.x / kWarp);
}

/// Loads one chunk with its first `count` elements valid, at any alignment; zeros behind them.
template <class T>
__device__ inline uint4 load_chunk(const T* from, int count) {
  std::uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t low = 2 * i < count ? from[2 * i].bits : 0;
    const std::uint32_t high = 2 * i + 1 < count ? from[2 * i + 1].bits : 0;
    word[i] = low | high << 16;
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

/// Starts to fill a tile with `rows` rows of `width` elements, with zeros around them; the whole
/// block takes part. Complete after cp_async_wait and a barrier.
template <AttentionPath kPath, class T, int kRows, int kWidth>
__device__ inline void load_tile(const SharedTile<T, kRows, kWidth>& tile, const T* from,
                                 std::int64_t stride, int rows, int width) {
  using Tile = SharedTile<T, kRows, kWidth>;
  constexpr unsigned kLanes = Tile::kGroup;
  constexpr int kStep = kAttentionThreads / Tile::kGroup;
  static_assert(kRows % kStep == 0);
  const int row = static_cast<int>(threadIdx.x / kLanes);
  const int chunk = static_cast<int>(threadIdx.x % kLanes);
  if constexpr (kPath != AttentionPath::general) {
    const T* source = from + row * stride + chunk * kPack<T>;
#pragma unroll 1
    for (int r = 0; r < kRows; r += kStep) {
#pragma unroll
      for (int c = 0; c < Tile::kChunks; c += Tile::kGroup) {
        const bool inside = row + r < rows && (chunk + c) * kPack<T> < width;
        ptx::cp_async_16(tile.at(row + r, chunk + c), source + c * kPack<T>, inside ? 16 : 0);
      }
      source += kStep * stride;
    }
  } else {
#pragma unroll 1
    for (int r = row; r < kRows; r += kStep)
#pragma unroll 1
      for (int c = chunk; c < Tile::kChunks; c += Tile::kGroup)
        *reinterpret_cast<uint4*>(tile.at(r, c)) =
            load_chunk(from + r * stride + c * kPack<T>, r < rows ? width - c * kPack<T> : 0);
  }
}

/// sums [16 kM x 8 kN] += A B^T: rows of `a` from `first` on times the first 8 kN rows of `b`. If
/// more than kUnrolled steps are unrolled, ptxas moves loads so far ahead that registers run out.
template <class T, int kUnrolled = 2, int kM, int kN, int kRowsA, int kRowsB, int kWidth>
__device__ inline void add_rows_product(float (&sums)[kM][kN][4],
                                        const SharedTile<T, kRowsA, kWidth>& a, int first,
                                        const SharedTile<T, kRowsB, kWidth>& b) {
  static_assert(kN % 2 == 0 && 8 * kN <= kRowsB);
  const int lane = lane_index();
#pragma unroll kUnrolled
  for (int k = 0; k < kWidth / 16; ++k) {
    std::uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m)
      ptx::ldmatrix_x4(left[m], a.at(first + 16 * m + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t right[4];
      ptx::ldmatrix_x4(right, b.at(8 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      const std::uint32_t even[2] = {right[0], right[1]}, odd[2] = {right[2], right[3]};
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        ptx::mma_16x8x16<T>(sums[m][n], left[m], even);
        ptx::mma_16x8x16<T>(sums[m][n + 1], left[m], odd);
      }
    }
  }
}

/// sums [16 kM x 8 kN] += A B with A [16 kM x 16 kK] in registers, B the whole tile.
template <class T, int kM, int kK, int kN, int kRows, int kWidth>
__device__ inline void add_product(float (&sums)[kM][kN][4], const std::uint32_t (&left)[kM][kK][4],
                                   const SharedTile<T, kRows, kWidth>& b) {
  static_assert(8 * kN == kWidth && 16 * kK == kRows);
  const int lane = lane_index();
#pragma unroll
  for (int k = 0; k < kK; ++k)
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t right[4];
      ptx::ldmatrix_x4_trans(right, b.at(16 * k + lane % 16, n + lane / 16));
      const std::uint32_t even[2] = {right[0], right[1]}, odd[2] = {right[2], right[3]};
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        ptx::mma_16x8x16<T>(sums[m][n], left[m][k], even);
        ptx::mma_16x8x16<T>(sums[m][n + 1], left[m][k], odd);
      }
    }
}

/// Rounds sums of one product to the left operand of the next: the fragments coincide.
template <class T, int kM, int kN>
__device__ inline void as_left(std::uint32_t (&left)[kM][kN / 2][4], const float (&x)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      left[m][n / 2][n % 2 * 2] = ptx::pack<T>(x[m][n][0], x[m][n][1]);
      left[m][n / 2][n % 2 * 2 + 1] = ptx::pack<T>(x[m][n][2], x[m][n][3]);
    }
}

template <int kM, int kN>
__device__ inline void set_zero(float (&x)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[m][n][i] = 0;
}

/// Writes the warp's rows, times factor[m][half], to `rows` rows of memory. The rows of `tile` from
/// `first` on, which nobody else reads, are used to assemble whole chunks.
template <AttentionPath kPath, class T, int kM, int kN, int kRows, int kWidth>
__device__ inline void store_rows(const float (&sums)[kM][kN][4], const float (&factor)[kM][2],
                                  const SharedTile<T, kRows, kWidth>& tile, int first, T* to,
                                  std::int64_t stride, int rows, int width) {
  using Tile = SharedTile<T, kRows, kWidth>;
  static_assert(8 * kN == kWidth);
  const int lane = lane_index();
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = sums[m][n][2 * half] * factor[m][half];
        const float high = sums[m][n][2 * half + 1] * factor[m][half];
        T* at = tile.at(first + 16 * m + 8 * half + lane / 4, n) + lane % 4 * 2;
        *reinterpret_cast<std::uint32_t*>(at) = ptx::pack<T>(low, high);
      }
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < 16 * kM * Tile::kChunks; i += kWarp) {
    const int row = i / Tile::kChunks, chunk = i % Tile::kChunks;
    const int count = row < rows ? width - chunk * kPack<T> : 0;
    if (count <= 0) continue;
    const T* from = tile.at(first + row, chunk);
    T* target = to + row * stride + chunk * kPack<T>;
    if constexpr (kPath != AttentionPath::general) {
      *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int e = 0; e < kPack<T> && e < count; ++e) target[e] = from[e];
    }
  }
}

/// The same with one factor for all rows.
template <AttentionPath kPath, class T, int kM, int kN, int kRows, int kWidth>
__device__ inline void store_rows(const float (&sums)[kM][kN][4], float factor,
                                  const SharedTile<T, kRows, kWidth>& tile, int first, T* to,
                                  std::int64_t stride, int rows, int width) {
  float factors[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) factors[m][0] = factors[m][1] = factor;
  store_rows<kPath>(sums, factors, tile, first, to, stride, rows, width);
}

// Scores of one warp in registers, rows along queries or along keys: initial values and mask. In
// every 16 x 8 tile lane l holds the elements (l / 4 + 8 half, l % 4 * 2 + i), at [2 half + i].

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

/// tanh x, with an error below 2^-21.
__device__ inline float short_tanh(float x) {
  const float e = ptx::exp2_approx(2.88539008f * x);  // e^2x, up to infinity
  return 1.0f - __fdividef(2.0f, 1.0f + e);
}

/// Caps raw scores, before they are masked.
template <class T, int kM, int kN>
__device__ inline void cap_scores(float (&scores)[kM][kN][4], const AttentionArgs<T>& a) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[m][n][i] = a.raw_cap * short_tanh(scores[m][n][i] * a.raw_uncap);
}

/// Backward with a soft cap: scores, which begin below their row's sum, are raised by it, capped
/// and lowered again, and dP is multiplied by the slope. sum(m, n, i) is the row's.
template <class T, int kM, int kN, class Sum>
__device__ inline void cap_gradients(float (&scores)[kM][kN][4], float (&d_p)[kM][kN][4],
                                     const AttentionArgs<T>& a, const Sum& sum) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float below = sum(m, n, i);
        // A row without visible keys has an infinite sum; its pairs stay hidden.
        if (below == INFINITY) continue;
        const float share = short_tanh((scores[m][n][i] + below) * a.raw_uncap);
        scores[m][n][i] = a.raw_cap * share - below;
        d_p[m][n][i] *= 1.0f - share * share;
      }
}

// The running softmax of the forward kernels for 16-bit elements, on scores in registers (Milakov &
// Gimelshein 2018), with a maximum that is raised only if it must be (FlashAttention-4, 2025).

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
