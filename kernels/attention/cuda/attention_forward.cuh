#pragma once
// out = softmax(scale Q K^T + bias) V for bf16 and f16 on the tensor cores of sm_80 and newer, and
// the log of every row's sum of exponentials (Dao et al. 2022, 2023; online softmax: Milakov &
// Gimelshein 2018; a maximum raised only if it must be: FlashAttention-4, 2025).
//
// Shapes: Q, out [B, Tq, H, D], K, V [B, Tk, Hkv, D], by strides; log_sum_exp [B, H, Tq].
// Floor: 4 D FLOPs per visible pair on the tensor cores. Bytes: neighbouring blocks share the K and
// V of a head in L2, so memory moves Q, K, V and out once: T / 4 FLOPs a byte under a causal mask,
// and from T = 300 on (H200) arithmetic is the only bound. A block reads K and V from L2 at 128
// FLOPs a byte. Attention of a few queries to a cache is bound by reading it; then empty rows on
// the tensor cores cost nothing. A bias adds 2 bytes per pair, 2 D FLOPs a byte.
//
// Blocks of 4 warps own 128 queries, 32 each, and walk over 64 keys at a time. With 32 queries per
// warp a fragment of K or V read from shared memory (4 cycles of the SM) feeds four mma (8 cycles
// on A100, 6 on H100); with 16 both would take the same time and the tensor cores would starve.
// Scores never leave registers: sums of one product are the left operand of the next.
//   D <=   tile        registers for out + scores   shared memory (Q + K + V)   blocks per SM
//   32     128 x 64    32 + 64                      8 + 4 + 4 KiB               2 (registers)
//   64     128 x 64    64 + 64                      16 + 8 + 8 KiB              2
//   96     128 x 64    96 + 64                      24 + 12 + 12 KiB            2
//   128    128 x 64    128 + 64                     32 + 16 + 16 KiB            2
//   256    64 x 32     128 + 16                     32 + 16 + 16 KiB            2
// All 255 registers are used, so the remaining latency is hidden by the second block and not by a
// ring of stages: V_j is loaded while S_j is computed, K_j+1 while P_j V_j is, each with one buffer
// and one barrier. With a bias, whose loads are all in flight at once, D = 96 and 128 take 32 keys.
// Predicted, from FlashAttention-2, which has this shape: 60 % of the peak on A100 (190 TFLOP/s),
// not measured. One H100, where attention_hopper_forward.cuh takes the wider heads, reaches 216 at
// D = 32 and T = 4096 (cuDNN 241), and a FastConformer's 48 x 8 heads of T = 125, D = 64 in 27 us.
// Heads of more than 128 leave registers for 16 queries per warp, so a fragment feeds two mma and
// shared memory is the bound: 1,640 FLOPs a cycle of an SM, 365 TFLOP/s on an H100 and 250 on an
// A100. Predicted are 55 % of that, 200 and 135, not measured.
#include "kernels/attention/cuda/attention_args.cuh"
#include "kernels/attention/cuda/attention_tiles.cuh"

namespace choir::cuda {

template <int kWidth, AttentionPath kPath>
struct ForwardTiles {
  static constexpr int kRowTiles = kWidth <= 128 ? 2 : 1;  ///< tiles of 16 queries per warp
  static constexpr int kWarpQueries = 16 * kRowTiles;
  static constexpr int kQueries = kAttentionWarps * kWarpQueries;
  static constexpr int kKeys = kWidth > 128 || (kWidth >= 96 && kPath != AttentionPath::plain) ? 32
                                                                                               : 64;
  template <class T>
  using QueryTile = SharedTile<T, kQueries, kWidth>;
  template <class T>
  using KeyTile = SharedTile<T, kKeys, kWidth>;
  static constexpr std::size_t kSharedBytes =
      sizeof(std::uint16_t) * (kQueries + 2 * kKeys) * kWidth;
};

template <class T, int kWidth, AttentionPath kPath>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    attention_forward_kernel(const AttentionArgs<T> a) {
  follow_earlier();
  using Tiles = ForwardTiles<kWidth, kPath>;
  using KeyTile = typename Tiles::template KeyTile<T>;
  constexpr int kM = Tiles::kRowTiles, kN = Tiles::kKeys / 8, kWide = kWidth / 8;
  const int tiles = static_cast<int>(blocks_for(a.queries, Tiles::kQueries));
  const AttentionPlace place = attention_place(tiles, a.heads);
  // With a causal mask late queries cost most, so they come first.
  const int query = (tiles - 1 - place.tile) * Tiles::kQueries;
  const int row = warp_index() * Tiles::kWarpQueries, rows = a.queries - query - row;
  const KeyLimit limit = a.limit(place.sample);
  const int last = min(query + Tiles::kQueries, a.queries) - 1;
  const int keys = limit(last);
  // A warp without queries only helps to load.
  const int warp_keys = rows > 0 ? limit(min(query + row + Tiles::kWarpQueries, a.queries) - 1) : 0;
  const int all_see = limit(query + row);
  const int begin = first_key_of_tiles<kPath, Tiles::kKeys>(limit, query);

  const typename Tiles::template QueryTile<T> q{dynamic_shared<T>()};
  const KeyTile k{q.data + q.kElements}, v{k.data + k.kElements};
  const int kv_head = place.head / a.group;
  const T* const key_rows = a.row(a.k, place.sample, 0, kv_head);
  const T* const value_rows = a.row(a.v, place.sample, 0, kv_head);
  const T* const bias =
      kPath != AttentionPath::plain && a.bias ? a.bias_of(place.sample, place.head) : nullptr;

  float out[kM][kWide][4];
  set_zero(out);
  OnlineSoftmax<kM> softmax;
  softmax.reset();
  if (begin < keys) {
    load_tile<kPath>(q, a.row(a.q, place.sample, query, place.head), a.q.position_stride,
                     a.queries - query, a.width);
    load_tile<kPath>(k, key_rows + begin * a.k.position_stride, a.k.position_stride, keys - begin,
                     a.width);
    ptx::cp_async_commit();
  }
  for (int first = begin; first < keys; first += Tiles::kKeys) {
    const bool works = first < warp_keys;
    float scores[kM][kN][4];
    start_scores<kPath>(scores, a, works ? bias : nullptr, query + row, first);
    ptx::cp_async_wait<0>();
    __syncthreads();  // this K has arrived, and no warp uses the previous V any more
    load_tile<kPath>(v, value_rows + first * a.v.position_stride, a.v.position_stride, keys - first,
                     a.width);
    ptx::cp_async_commit();
    std::uint32_t p[kM][kN / 2][4];
    if (works) {
      // On Blackwell ptxas spills up to 312 bytes at D = 128 unless all steps are unrolled, and
      // with a bias a different number of steps is needed.
      constexpr int kBias = kPath == AttentionPath::general ? 2 : 1;
      constexpr int kOnBlackwell = kPath == AttentionPath::plain ? kWidth / 16 : kBias;
      add_rows_product<T, kBlackwell ? kOnBlackwell : 2>(scores, q, row, k);
      if constexpr (kPath != AttentionPath::plain)
        if (a.cap > 0) cap_scores(scores, a);
      if (first + Tiles::kKeys > all_see) mask_scores(scores, limit, query + row, first);
      if constexpr (kPath != AttentionPath::plain)
        if (first < limit.first(query + row + Tiles::kWarpQueries - 1))
          mask_window(scores, limit, query + row, first);
      softmax.add(scores, out, a.scale_log2);
    }
    as_left<T>(p, scores);  // always: unset registers would stay live from step to step
    ptx::cp_async_wait<0>();
    __syncthreads();  // this V has arrived, and no warp uses K any more
    const int next = first + Tiles::kKeys;
    if (next < keys) {
      load_tile<kPath>(k, key_rows + next * a.k.position_stride, a.k.position_stride, keys - next,
                       a.width);
      ptx::cp_async_commit();
    }
    if (works) add_product<T>(out, p, v);
  }
  if (rows <= 0) return;
  float inverse[kM][2];
  softmax.finish(inverse, a.scale_log2,
                 a.log_sum_exp ? a.log_sum_exp + a.statistics(place.sample, place.head) : nullptr,
                 query + row, a.queries);
  store_rows<kPath>(out, inverse, q, row, a.row(a.out, place.sample, query + row, place.head),
                    a.out.position_stride, rows, a.width);
}

template <class T>
void launch_attention_forward(const Stream& stream, const ops::AttentionProblem& p,
                              const AttentionArgs<T>& a) {
  with_attention_path(p, a, [&](auto width, auto path) {
    using Tiles = ForwardTiles<width(), path()>;
    launch(stream, "attention_forward", attention_forward_kernel<T, width(), path()>,
           {attention_blocks(blocks_for(p.queries, Tiles::kQueries), p.heads, p.batch),
            kAttentionThreads, Tiles::kSharedBytes},
           a);
  });
}

}  // namespace choir::cuda
