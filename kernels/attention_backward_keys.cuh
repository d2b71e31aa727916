#pragma once
// PLACEHOLDER
#include "kernels/attention_scores.cuh"

namespace choir::cuda {

template <int kWidth>
struct BackwardKeysTiles {
  static constexpr int kRowTiles = kWidth <= 64 ? 2 : 1;  ///< of 16 keys per warp
  static constexpr int kWarpKeys = 16 * kRowTiles;
  static constexpr int kKeys = kAttentionWarps * kWarpKeys;
  static constexpr int kQueries = kWidth == 64 ? 32 : 64;
  template <class T>
  using KeyTile = SharedTile<T, kKeys, kWidth>;
  template <class T>
  using QueryTile = SharedTile<T, kQueries, kWidth>;
  static constexpr std::size_t kSharedBytes =
      sizeof(std::uint16_t) * (2 * kKeys + 4 * kQueries) * kWidth + sizeof(float) * 4 * kQueries;
};

/// The queries one block of the kernel walks through: tiles of the heads that share its keys.
struct QueryWalk {
  int first;     ///< tile of every head that sees the keys at all
  int per_head;  ///< tiles of one head from there
  int head;      ///< the first

  __device__ int head_of(int step) const { return head + step / per_head; }
  __device__ int tile_of(int step) const { return first + step % per_head; }
};

template <class T, int kWidth, bool kAligned>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    attention_backward_keys_kernel(const AttentionArgs<T> a) {
  using Tiles = BackwardKeysTiles<kWidth>;
  using KeyTile = typename Tiles::template KeyTile<T>;
  using QueryTile = typename Tiles::template QueryTile<T>;
  constexpr int kQ = Tiles::kQueries, kM = Tiles::kRowTiles, kN = kQ / 8, kWide = kWidth / 8;
  const int tiles = static_cast<int>(blocks_for(a.keys, Tiles::kKeys)),
            kv_heads = a.heads / a.group;
  const AttentionPlace place = attention_place(tiles, kv_heads);
  const int key = place.tile * Tiles::kKeys, row = warp_index() * Tiles::kWarpKeys;
  const int rows = a.keys - key - row;
  const KeyLimit limit = a.limit(place.sample);

  const KeyTile k{dynamic_shared<T>()}, v{k.data + k.kElements};
  T* const ring = v.data + v.kElements;
  // log2 of the sums, then delta, of the queries of each stage
  float* const statistics = reinterpret_cast<float*>(ring + 4 * QueryTile::kElements);

  QueryWalk walk{0, static_cast<int>(blocks_for(a.queries, kQ)), place.head * a.group};
  if (limit.causal && key > limit.offset) walk.first = (key - limit.offset) / kQ;
  walk.per_head -= walk.first;
  const int steps = key < limit.keys && walk.per_head > 0 ? a.group * walk.per_head : 0;

  const auto load = [&](int step) {
    const int head = walk.head_of(step), query = walk.tile_of(step) * kQ;
    const QueryTile q{ring + step % 2 * 2 * QueryTile::kElements}, d_out{q.data + q.kElements};
    load_tile<kAligned>(q, a.row(a.q, place.sample, query, head), a.q.position_stride,
                        a.queries - query, a.width);
    load_tile<kAligned>(d_out, a.row(a.d_out, place.sample, query, head), a.d_out.position_stride,
                        a.queries - query, a.width);
    ptx::cp_async_commit();
  };
  // One value per thread travels through a register while the step before is computed.
  static_assert(2 * kQ <= kAttentionThreads);
  const int mine = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int step) {
    const int query = walk.tile_of(step) * kQ + mine % kQ;
    if (mine >= 2 * kQ || query >= a.queries) return mine < kQ ? INFINITY : 0.0f;
    const std::int64_t at = a.statistics(place.sample, walk.head_of(step)) + query;
    return mine < kQ ? log2_sum(a.log_sum_exp[at]) : a.delta[at];
  };
  const auto keep = [&](int step, float value) {
    if (mine < 2 * kQ) statistics[step % 2 * 2 * kQ + mine] = value;
  };

  float d_k[kM][kWide][4], d_v[kM][kWide][4];
  set_zero(d_k), set_zero(d_v);
  if (steps > 0) {
    load_tile<kAligned>(k, a.row(a.k, place.sample, key, place.head), a.k.position_stride,
                        limit.keys - key, a.width);
    load_tile<kAligned>(v, a.row(a.v, place.sample, key, place.head), a.v.position_stride,
                        limit.keys - key, a.width);
    load(0);
    keep(0, fetch(0));
  }
  for (int step = 0; step < steps; ++step) {
    const int query = walk.tile_of(step) * kQ, head = walk.head_of(step);
    float scores[kM][kN][4], d_p[kM][kN][4];
    start_scores_transposed(scores, a, a.bias ? a.bias_of(place.sample, head) : nullptr, key + row,
                            query);
    set_zero(d_p);
    ptx::cp_async_wait<0>();
    __syncthreads();  // this stage is there, and every warp is done with the other
    float next = 0;
    if (step + 1 < steps) load(step + 1), next = fetch(step + 1);
    const QueryTile q{ring + step % 2 * 2 * QueryTile::kElements}, d_out{q.data + q.kElements};
    const float* const log2_sums = statistics + step % 2 * 2 * kQ + lane_index() % 4 * 2;
    const float* const delta = log2_sums + kQ;
    const int seen_by_all = limit(query);  // keys that every query of the tile sees
    if (rows > 0 && key + row < limit(min(query + kQ, a.queries) - 1)) {
      add_rows_product<T>(scores, k, row, q);
      add_rows_product<T>(d_p, v, row, d_out);
      if (key + row + Tiles::kWarpKeys > seen_by_all)
        mask_scores_transposed(scores, limit, key + row, query);
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float log2_of_sum = log2_sums[8 * n + i], subtract = delta[8 * n + i];
#pragma unroll
          for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              float& p = scores[m][n][2 * half + i];
              p = ptx::exp2_approx(p * a.scale_log2 - log2_of_sum);
              d_p[m][n][2 * half + i] = p * (d_p[m][n][2 * half + i] - subtract);
            }
        }
      std::uint32_t left[kM][kN / 2][4];
      as_left<T>(left, scores);
      add_product<T>(d_v, left, d_out);
      as_left<T>(left, d_p);
      add_product<T>(d_k, left, q);
    }
    if (step + 1 < steps) keep(step + 1, next);
  }
  if (rows <= 0) return;
  float one[kM][2], scale[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) one[m][half] = 1, scale[m][half] = a.scale;
  store_rows<kAligned>(d_k, scale, k, row, a.row(a.d_k, place.sample, key + row, place.head),
                       a.d_k.position_stride, rows, a.width);
  store_rows<kAligned>(d_v, one, v, row, a.row(a.d_v, place.sample, key + row, place.head),
                       a.d_v.position_stride, rows, a.width);
}

}  // namespace choir::cuda
