// Backward of attention with relative positions in one kernel, for up to 256 frames and heads of up
// to 64: all keys of a head fit into the shared memory of a block. In the two kernels of
// kernels/attention/cuda/attention_backward.cuh, S and dP are computed twice, the bias is read
// twice, and the gradient of the bias is written, read by unshift_scores() and written again.
//
// A block owns a head of a sample, a warp 32 of its keys. K and V stay in shared memory; tiles of
// 32 queries and their dO pass through a ring of two stages. Per tile: S^T = K Q^T and dP^T = V
// dO^T with keys along the rows, so that P^T and dS^T are left operands for dV and dK, whose sums
// stay in registers; dS is also stored in shared memory, from where dQ = dS K is summed over all
// keys at once, and the rows of dS are written to the place of their distances, with zeros around
// them. Two barriers per tile.
//
// Floor: 10 D FLOPs per visible pair (14 D in two kernels), and per pair of 16 bits 2 bytes of bias
// and 4 of d_scores (in two kernels 4 + 2, and 2 + 4 to unshift). 25 x 8 heads of 221 frames, a
// block of FastConformer L, are 6.3 GFLOP and 59 MB: 20 us at 3 TB/s. One block of 8 warps fits a
// multiprocessor (97 KiB, 255 registers). Predicted: 60 us on an H100, in place of 140; no card has
// run it yet. All sums are in a fixed order, that of the two kernels.

#include "kernels/attention/cuda/attention_args.cuh"
#include "kernels/attention/cuda/attention_tiles.cuh"
#include "kernels/relative_attention/relative_attention.hpp"

namespace choir::cuda {

constexpr int kRelativeWarps = 8, kRelativeThreads = kRelativeWarps * kWarp;
constexpr int kRelativeWidth = 64, kRelativeKeys = 32 * kRelativeWarps, kRelativeQueries = 32;
static_assert(kRelativeKeys == kMostFramesInOneKernel && kRelativeWidth == kWidestHeadInOneKernel);
/// Queries of a tile that a warp processes at once, and unrolled steps of a product. With all
/// queries or two steps, ptxas spills on Blackwell.
constexpr int kRelativePart = kBlackwell ? 16 : kRelativeQueries;
constexpr int kRelativeUnrolled = kBlackwell ? 1 : 2;

template <class T>
struct RelativeTiles {
  using Keys = SharedTile<T, kRelativeKeys, kRelativeWidth>;
  using Queries = SharedTile<T, kRelativeQueries, kRelativeWidth>;
  using Gradients = SharedTile<T, kRelativeQueries, kRelativeKeys>;  ///< dS
  using QueriesPart = SharedTile<T, kRelativePart, kRelativeWidth>;
  using GradientsPart = SharedTile<T, kRelativePart, kRelativeKeys>;
  static constexpr std::size_t kSharedBytes =
      sizeof(T) * (2 * Keys::kElements + 4 * Queries::kElements + Gradients::kElements) +
      sizeof(float) * 4 * kRelativeQueries;
};

/// load_tile() by the threads of this kernel, for whole chunks.
template <class T, int kRows>
__device__ inline void load_relative_tile(const SharedTile<T, kRows, kRelativeWidth>& tile,
                                          const T* from, std::int64_t stride, int rows, int width) {
  constexpr int kChunks = kRelativeWidth / kPack<T>, kStep = kRelativeThreads / kChunks;
  static_assert(kRows % kStep == 0);
  const int row = static_cast<int>(threadIdx.x) / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const bool inside = chunk * kPack<T> < width;
  const T* source = from + row * stride + (inside ? chunk * kPack<T> : 0);
#pragma unroll 1
  for (int r = row; r < kRows; r += kStep, source += kStep * stride)
    ptx::cp_async_16(tile.at(r, chunk), source, r < rows && inside ? 16 : 0);
}

/// Stores dS^T, rounded, with a row per query.
template <class T, int kM, int kK>
__device__ inline void store_transposed(const std::uint32_t (&left)[kM][kK][4],
                                        const SharedTile<T, 16 * kK, kRelativeKeys>& tile,
                                        int key) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < 2 * kK; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t pair = left[m][n / 2][n % 2 * 2 + half];
        const int row = 8 * n + lane % 4 * 2, at = key + 16 * m + 8 * half + lane / 4;
        tile.at(row, at / 8)[at % 8].bits = static_cast<std::uint16_t>(pair);
        tile.at(row + 1, at / 8)[at % 8].bits = static_cast<std::uint16_t>(pair >> 16);
      }
}

/// Writes this warp's share of the rows of dS to rows of `width` elements, where key j of query i
/// has place j + T - 1 - i.
template <class T>
__device__ inline void write_shifted(const SharedTile<T, kRelativeQueries, kRelativeKeys>& tile,
                                     T* rows, int query, int tokens, int width) {
  constexpr int kRows = kRelativeQueries / kRelativeWarps;
#pragma unroll 1
  for (int r = 0; r < kRows; ++r) {
    const int row = warp_index() * kRows + r, i = query + row;
    if (i >= tokens) return;
    T* const to = rows + static_cast<std::int64_t>(i) * width;
    for (int p = lane_index() * kPack<T>; p < width; p += kWarp * kPack<T>) {
      std::uint32_t word[4] = {};
#pragma unroll
      for (int e = 0; e < kPack<T>; ++e) {
        const int j = p + e + i - (tokens - 1);
        if (j < 0 || j >= tokens) continue;
        word[e / 2] |= std::uint32_t{tile.at(row, j / 8)[j % 8].bits} << (e % 2 * 16);
      }
      ptx::store_16(to + p, make_uint4(word[0], word[1], word[2], word[3]));
    }
  }
}

/// dQ of 16 queries and 16 columns, summed over all keys, by one of 8 warps.
template <class T>
__device__ inline void relative_query_gradient(
    const AttentionArgs<T>& a, const SharedTile<T, kRelativeQueries, kRelativeKeys>& d_s,
    const SharedTile<T, kRelativeKeys, kRelativeWidth>& k, int keys, T* to, int rows) {
  const int lane = lane_index(), first = warp_index() % 2 * 16, n = warp_index() / 2 * 2;
  float sums[2][4] = {};
#pragma unroll kRelativeUnrolled
  for (int key = 0; key < keys; key += 16) {
    std::uint32_t left[4], right[4];
    ptx::ldmatrix_x4(left, d_s.at(first + lane % 16, key / 8 + lane / 16));
    ptx::ldmatrix_x4_trans(right, k.at(key + lane % 16, n + lane / 16));
    const std::uint32_t even[2] = {right[0], right[1]}, odd[2] = {right[2], right[3]};
    ptx::mma_16x8x16<T>(sums[0], left, even);
    ptx::mma_16x8x16<T>(sums[1], left, odd);
  }
#pragma unroll
  for (int part = 0; part < 2; ++part)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 8 * half + lane / 4, column = 8 * (n + part) + lane % 4 * 2;
      if (row < rows && column < a.width)
        *reinterpret_cast<std::uint32_t*>(to + row * a.d_q.position_stride + column) =
            ptx::pack<T>(sums[part][2 * half] * a.scale, sums[part][2 * half + 1] * a.scale);
    }
}

template <class T>
__global__ void __launch_bounds__(kRelativeThreads, 1)
    relative_backward_kernel(const AttentionArgs<T> a, T* d_scores, int batch, int width) {
  follow_earlier();
  using Tiles = RelativeTiles<T>;
  constexpr int kQ = kRelativeQueries, kPart = kRelativePart, kM = 2, kN = kPart / 8;
  constexpr int kWide = kRelativeWidth / 8;
  constexpr bool kWhole = kPart == kQ;
  const AttentionPlace place = attention_place(1, a.heads);
  const int key = warp_index() * 32, rows = a.keys - key;
  const KeyLimit limit = a.limit(place.sample);
  const std::int64_t at = a.statistics(place.sample, place.head);
  const T* const bias = a.bias_of(place.sample, place.head);
  T* const gradient =
      d_scores + (std::int64_t{place.head} * batch + place.sample) * a.queries * width;

  const typename Tiles::Keys k{dynamic_shared<T>()}, v{k.data + k.kElements};
  T* const ring = v.data + v.kElements;
  const typename Tiles::Gradients d_s{ring + 4 * Tiles::Queries::kElements};
  float* const statistics = reinterpret_cast<float*>(d_s.data + d_s.kElements);

  const auto load = [&](int query) {
    const typename Tiles::Queries q{ring + query / kQ % 2 * 2 * Tiles::Queries::kElements},
        d_out{q.data + q.kElements};
    load_relative_tile(q, a.row(a.q, place.sample, query, place.head), a.q.position_stride,
                       a.queries - query, a.width);
    load_relative_tile(d_out, a.row(a.d_out, place.sample, query, place.head),
                       a.d_out.position_stride, a.queries - query, a.width);
    ptx::cp_async_commit();
  };
  // Negated initial values of scores and dP for the queries of a stage.
  const auto keep_sums = [&](int query) {
    float* const sums = statistics + query / kQ % 2 * 2 * kQ;
    const int mine = static_cast<int>(threadIdx.x), t = query + mine;
    if (mine < kQ) sums[mine] = t < a.queries ? raw_sum(a, a.log_sum_exp[at + t]) : INFINITY;
    with_deltas<kQ, kRelativeThreads, kRelativeWidth, true>(
        a, place.sample, place.head, query, [&](int r, float delta) { sums[r + kQ] = delta; });
  };

  float d_k[kM][kWide][4], d_v[kM][kWide][4];
  set_zero(d_k), set_zero(d_v);
  load_relative_tile(k, a.row(a.k, place.sample, 0, place.head), a.k.position_stride, limit.keys,
                     a.width);
  load_relative_tile(v, a.row(a.v, place.sample, 0, place.head), a.v.position_stride, limit.keys,
                     a.width);
  load(0);
  keep_sums(0);
  for (int query = 0; query < a.queries; query += kQ) {
    const int stage = query / kQ % 2;
    float scores[kM][kN][4], d_p[kM][kN][4];
    if (kWhole) start_scores_transposed<AttentionPath::biased>(scores, a, bias, key, query);
    ptx::cp_async_wait<0>();
    __syncthreads();  // this stage has arrived; no warp uses the other, or the last dS, any more
    if (query + kQ < a.queries) load(query + kQ), keep_sums(query + kQ);
#pragma unroll 1
    for (int part = 0; part < kQ; part += kPart) {
      // Places are computed from `part`, because ptxas would spill pointers that move on.
      const typename Tiles::QueriesPart q{ring + stage * 2 * Tiles::Queries::kElements +
                                          part * kRelativeWidth},
          d_out{q.data + Tiles::Queries::kElements};
      const typename Tiles::GradientsPart d_s_part{d_s.data + part * kRelativeKeys};
      const float* const sums = statistics + stage * 2 * kQ + part + lane_index() % 4 * 2;
      if (!kWhole)
        start_scores_transposed<AttentionPath::biased>(scores, a, bias, key, query + part);
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float sum = sums[8 * n + i % 2], delta = sums[8 * n + i % 2 + kQ];
#pragma unroll
          for (int m = 0; m < kM; ++m) scores[m][n][i] -= sum, d_p[m][n][i] = -delta;
        }
      add_rows_product<T, kRelativeUnrolled>(scores, k, key, q);
      add_rows_product<T, kRelativeUnrolled>(d_p, v, key, d_out);
      if (key + 32 > limit.keys) mask_scores_transposed(scores, limit, key, query + part);
      as_gradients(scores, d_p, a.scale_log2);
      std::uint32_t left[kM][kN / 2][4];
      as_left<T>(left, scores);
      add_product<T>(d_v, left, d_out);
      as_left<T>(left, d_p);
      store_transposed(left, d_s_part, key);
      add_product<T>(d_k, left, q);
    }
    __syncthreads();  // dS of all keys
    relative_query_gradient(a, d_s, k, limit.keys, a.row(a.d_q, place.sample, query, place.head),
                            a.queries - query);
    write_shifted(d_s, gradient, query, a.queries, width);
  }
  __syncthreads();  // K has been read
  if (rows <= 0) return;
  constexpr AttentionPath kPath = AttentionPath::biased;
  store_rows<kPath>(d_k, a.scale, k, key, a.row(a.d_k, place.sample, key, place.head),
                    a.d_k.position_stride, rows, a.width);
  store_rows<kPath>(d_v, 1.0f, v, key, a.row(a.d_v, place.sample, key, place.head),
                    a.d_v.position_stride, rows, a.width);
}

bool relative_attention_backward(const Stream& stream, const ops::AttentionBackward& args,
                                 const TensorView& d_scores) {
  const ops::AttentionProblem& p = args.problem;
  bool done = false;
  with_element(p.dtype, [&](auto t) {
    using T = decltype(t);
    if constexpr (sizeof(T) == 2) {
      const auto a = attention_args<T>(args);
      const std::int64_t width = d_scores.shape.back();
      if (!a.aligned || !can_pack<T>(width, d_scores.as<T>())) return;
      launch(
          stream, "relative_backward", relative_backward_kernel<T>,
          {attention_blocks(1, p.heads, p.batch), kRelativeThreads, RelativeTiles<T>::kSharedBytes},
          a, d_scores.as<T>(), static_cast<int>(p.batch), static_cast<int>(width));
      done = true;
    }
  });
  return done;
}

}  // namespace choir::cuda
