#pragma once
// Backward of attention for bf16 and f16 in two kernels: one owns tiles of keys (dK, dV), the other
// tiles of queries (dQ, d_bias).
//
// dK = scale dS^T Q and dV = P^T dO, the half that sums over queries: S^T = K Q^T and dP^T = V dO^T
// are recomputed with keys along the rows, so that the registers of P^T and dS^T are used as left
// operands without a shuffle; dS = P (dP - delta).
//
// Floor of backward: 10 D FLOPs per visible pair (five products). The first kernel computes four
// products and the second three: S and dP are computed twice, 14 D in all. The alternative, one
// kernel that writes partial dQ of each tile of keys for a later sum in fixed order, needs five
// products but writes and reads 8 D / 64 bytes per pair: at D = 128, 16 bytes against 4 D = 512
// FLOPs saved, 3.3 ps of a H200's memory against 1.6 ps of its tensor cores at 320 TFLOP/s, and T /
// 64 times dQ in f32 as scratch memory. Atomics would be neither deterministic nor cheaper than
// that. Therefore there are no atomics and no partial sums, and every sum is computed by one block
// in a fixed order.
//
// A block owns 128 keys (64 for wide heads) of one K/V head and walks through the queries of all
// heads of its group (the sum over the group stays in registers), with two stages of Q and dO in a
// ring and one barrier per step. Scores begin at (bias - log_sum_exp) / scale and dP at -delta, so
// P and dS are one exponential and one product away.
//   D <=   keys x queries   registers for dK + dV + S + dP   shared memory   blocks per SM
//   32     128 x 64         32 + 32 + 64 + 64                33 KiB          2 (registers)
//   64     128 x 32         64 + 64 + 32 + 32                49 KiB          2
//   96     64 x 64          48 + 48 + 32 + 32                73 KiB          2
//   128    64 x 64          64 + 64 + 32 + 32                97 KiB          2 (1 on A100)
//   256    64 x 16 for dK   128 + 8 + 8                      97 KiB          2 (1 on A100)
//          64 x 32 for dV   128 + 16                         97 KiB          2 (1 on A100)
// (With a bias, or on Blackwell, the tile is 64 x 32 for 128; with a bias 64 x 16 for dV of 256.)
// Wide heads leave registers for only 16 keys per warp: each fragment from shared memory feeds two
// mma instead of four, and shared memory is the bound (4.5 cycles for each 4 of mma on A100).
// Predicted with the other half, in TFLOP/s of the floor's 10 D: 5/7 of FlashAttention-2's
// backward, 120 on A100 (38 % of the peak), not measured. One H100 reaches 191 at D = 32 and T =
// 4096 (cuDNN, deterministic: 124).
// Heads of more than 128 take a kernel for dK and one for dV, and eight products: S is computed
// three times. Tiles of 16 keep shared memory below the 99 KiB of sm_86, sm_89 and sm_120, and
// fragments from there feed two mma at most: the bound is 820 FLOPs of the floor's 10 D a cycle of
// an SM, 180 TFLOP/s on an H100 and 125 on an A100. Predicted are 90 and 60, not measured.

#include "kernels/attention/cuda/attention_args.cuh"
#include "kernels/attention/cuda/attention_tiles.cuh"

namespace choir::cuda {

/// The gradients that one kernel computes. For wide heads, dK and dV are two kernels, because the
/// sums of both together do not fit into registers.
enum class KeyGradients { both, of_keys, of_values };

template <int kWidth, AttentionPath kPath, KeyGradients kGradients = KeyGradients::both>
struct BackwardKeysTiles {
  static constexpr int kRowTiles = kWidth <= 64 ? 2 : 1;  ///< tiles of 16 keys per warp
  static constexpr int kWarpKeys = 16 * kRowTiles;
  static constexpr int kKeys = kAttentionWarps * kWarpKeys;
  // On sm_100 ptxas also spills at D = 128 with tiles of 64 queries.
  static constexpr bool kFew = kBlackwell || kPath != AttentionPath::plain;
  static constexpr int kNarrowQueries = kWidth == 64 || (kWidth == 128 && kFew) ? 32 : 64;
  // On sm_100 ptxas spills in the kernel of dV with a bias unless its tiles are those of dK.
  static constexpr bool kShort =
      kGradients == KeyGradients::of_keys || kPath == AttentionPath::biased;
  static constexpr int kQueries = kGradients == KeyGradients::both ? kNarrowQueries
                                  : kShort                         ? 16
                                                                   : 32;
  /// Tiles of K, and of V, which dV does not need.
  static constexpr int kKeyTiles = kGradients == KeyGradients::of_values ? 1 : 2;
  template <class T>
  using KeyTile = SharedTile<T, kKeys, kWidth>;
  template <class T>
  using QueryTile = SharedTile<T, kQueries, kWidth>;
  static constexpr std::size_t kSharedBytes =
      sizeof(std::uint16_t) * (kKeyTiles * kKeys + 4 * kQueries) * kWidth +
      sizeof(float) * 4 * kQueries;
};

/// The queries that a block walks through: tiles of the heads that share its keys.
struct QueryWalk {
  int first;     ///< first tile of every head that sees the keys at all
  int per_head;  ///< tiles per head from there
  int head;      ///< the first head

  __device__ int head_of(int step) const { return head + step / per_head; }
  __device__ int tile_of(int step) const { return first + step % per_head; }
};

template <class T, int kWidth, AttentionPath kPath, KeyGradients kGradients>
__device__ inline void attention_backward_keys(const AttentionArgs<T>& a) {
  using Tiles = BackwardKeysTiles<kWidth, kPath, kGradients>;
  constexpr bool kOfKeys = kGradients != KeyGradients::of_values;
  constexpr bool kOfValues = kGradients != KeyGradients::of_keys;
  using KeyTile = typename Tiles::template KeyTile<T>;
  using QueryTile = typename Tiles::template QueryTile<T>;
  constexpr bool kGeneral = kPath == AttentionPath::general;
  // On Blackwell ptxas spills unless only half a tile of scores and dP is in registers at a time.
  constexpr int kQ = Tiles::kQueries, kParts = kBlackwell && kWidth < 128 ? 2 : 1;
  constexpr int kPart = kQ / kParts;
  constexpr int kM = Tiles::kRowTiles, kN = kPart / 8, kWide = kWidth / 8;
  using PartTile = SharedTile<T, kPart, kWidth>;
  const int tiles = static_cast<int>(blocks_for(a.keys, Tiles::kKeys)),
            kv_heads = a.heads / a.group;
  const AttentionPlace place = attention_place(tiles, kv_heads);
  const int key = place.tile * Tiles::kKeys, row = warp_index() * Tiles::kWarpKeys;
  const int rows = a.keys - key - row;
  const KeyLimit limit = a.limit(place.sample);

  const KeyTile k{dynamic_shared<T>()}, v{k.data + (Tiles::kKeyTiles - 1) * k.kElements};
  T* const ring = v.data + v.kElements;
  // Negated initial values of scores and dP for the queries of each stage.
  float* const statistics = reinterpret_cast<float*>(ring + 4 * QueryTile::kElements);

  QueryWalk walk{0, static_cast<int>(blocks_for(a.queries, kQ)), place.head * a.group};
  if (limit.causal && key > limit.offset) walk.first = (key - limit.offset) / kQ;
  if constexpr (kPath != AttentionPath::plain) {
    // Queries beyond the window or the document of the last key see none of these keys.
    const int behind = limit.behind(key + Tiles::kKeys - 1, a.queries);
    walk.per_head = static_cast<int>(blocks_for(behind, kQ));
  }
  walk.per_head -= walk.first;
  const int steps = key < limit.keys && walk.per_head > 0 ? a.group * walk.per_head : 0;

  const auto load = [&](int step) {
    const int head = walk.head_of(step), query = walk.tile_of(step) * kQ;
    const QueryTile q{ring + step % 2 * 2 * QueryTile::kElements}, d_out{q.data + q.kElements};
    load_tile<kPath>(q, a.row(a.q, place.sample, query, head), a.q.position_stride,
                     a.queries - query, a.width);
    load_tile<kPath>(d_out, a.row(a.d_out, place.sample, query, head), a.d_out.position_stride,
                     a.queries - query, a.width);
    ptx::cp_async_commit();
  };
  // Every thread keeps one value in a register while the previous step is computed.
  static_assert(2 * kQ <= kAttentionThreads);
  const int mine = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int step) {
    const int query = walk.tile_of(step) * kQ + mine % kQ;
    if (mine >= 2 * kQ || query >= a.queries) return mine < kQ ? INFINITY : 0.0f;
    const std::int64_t at = a.statistics(place.sample, walk.head_of(step)) + query;
    return mine < kQ ? raw_sum(a, a.log_sum_exp[at]) : a.delta[at];
  };
  const auto keep = [&](int step, float value) {
    if (mine < 2 * kQ) statistics[step % 2 * 2 * kQ + mine] = value;
  };

  float d_k[kM][kWide][4], d_v[kM][kWide][4];
  set_zero(d_k), set_zero(d_v);
  if (steps > 0) {
    load_tile<kPath>(k, a.row(a.k, place.sample, key, place.head), a.k.position_stride,
                     limit.keys - key, a.width);
    if constexpr (kOfKeys)
      load_tile<kPath>(v, a.row(a.v, place.sample, key, place.head), a.v.position_stride,
                       limit.keys - key, a.width);
    load(0);
    keep(0, fetch(0));
  }
  for (int step = 0; step < steps; ++step) {
    const int head = walk.head_of(step);
    const T* const bias = a.bias ? a.bias_of(place.sample, head) : nullptr;
    int query = walk.tile_of(step) * kQ;
    float scores[kM][kN][4], d_p[kM][kN][4];
    start_scores_transposed<kPath>(scores, a, bias, key + row, query);
    ptx::cp_async_wait<0>();
    __syncthreads();  // this stage has arrived, and no warp uses the other any more
    float next = 0;
    if (step + 1 < steps) load(step + 1), next = fetch(step + 1);
    PartTile q{ring + step % 2 * 2 * QueryTile::kElements};
    PartTile d_out{q.data + QueryTile::kElements};
    const float* sums = statistics + step % 2 * 2 * kQ + lane_index() % 4 * 2;
#pragma unroll  // with a loop ptxas spills on sm_100
    for (int part = 0; part < kParts; ++part) {
      if (part > 0) {
        query += kPart, sums += kPart;
        q.data += PartTile::kElements, d_out.data += PartTile::kElements;
        start_scores_transposed<kPath>(scores, a, bias, key + row, query);
      }
      const int seen_by_all = limit(query);  // keys visible to every query of the part
      if (rows <= 0 || key + row >= limit(min(query + kPart, a.queries) - 1)) continue;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float sum = sums[8 * n + i % 2], delta = sums[8 * n + i % 2 + kQ];
#pragma unroll
          for (int m = 0; m < kM; ++m) scores[m][n][i] -= sum, d_p[m][n][i] = -delta;
        }
      // Unroll as many steps as ptxas compiles without a spill, on Blackwell and on sm_80.
      constexpr int kOnBlackwell = kWidth == 128 ? 1 : kWidth == 64 && !kGeneral ? 4 : 2;
      constexpr int kUnrolled = kBlackwell ? kOnBlackwell : kWidth <= 64 && kGeneral ? 1 : 2;
      add_rows_product<T, kUnrolled>(scores, k, row, q);
      if constexpr (kOfKeys) add_rows_product<T, kUnrolled>(d_p, v, row, d_out);
      if constexpr (kPath != AttentionPath::plain)
        if (a.cap > 0)
          cap_gradients(scores, d_p, a, [&](int, int n, int i) { return sums[8 * n + i % 2]; });
      if (key + row + Tiles::kWarpKeys > seen_by_all)
        mask_scores_transposed(scores, limit, key + row, query);
      if constexpr (kPath != AttentionPath::plain)
        if (key + row < limit.first(query + kPart - 1))
          mask_window_transposed(scores, limit, key + row, query);
      as_gradients(scores, d_p, a.scale_log2);
      std::uint32_t left[kM][kN / 2][4];
      if constexpr (kOfValues) {
        as_left<T>(left, scores);
        add_product<T>(d_v, left, d_out);
      }
      if constexpr (kOfKeys) {
        as_left<T>(left, d_p);
        add_product<T>(d_k, left, q);
      }
    }
    if (step + 1 < steps) keep(step + 1, next);
  }
  if (rows <= 0) return;
  if constexpr (kOfKeys)
    store_rows<kPath>(d_k, a.scale, k, row, a.row(a.d_k, place.sample, key + row, place.head),
                      a.d_k.position_stride, rows, a.width);
  if constexpr (kOfValues)
    store_rows<kPath>(d_v, 1.0f, v, row, a.row(a.d_v, place.sample, key + row, place.head),
                      a.d_v.position_stride, rows, a.width);
}

template <class T, int kWidth, AttentionPath kPath>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    attention_backward_keys_kernel(const AttentionArgs<T> a) {
  follow_earlier();
  attention_backward_keys<T, kWidth, kPath, KeyGradients::both>(a);
}

/// dK or dV of heads of more than 128.
template <class T, int kWidth, AttentionPath kPath, KeyGradients kGradients>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    attention_backward_wide_keys_kernel(const AttentionArgs<T> a) {
  follow_earlier();
  attention_backward_keys<T, kWidth, kPath, kGradients>(a);
}

template <class T>
void launch_attention_backward_keys(const Stream& stream, const ops::AttentionProblem& p,
                                    const AttentionArgs<T>& a) {
  with_attention_path(p, a, [&](auto width, auto path) {
    const auto queue = [&](const char* name, auto kernel, auto tiles) {
      launch(stream, name, kernel,
             {attention_blocks(blocks_for(p.keys, tiles.kKeys), p.kv_heads, p.batch),
              kAttentionThreads, tiles.kSharedBytes},
             a);
    };
    using enum KeyGradients;
    if constexpr (width() <= 128) {
      queue("attention_backward_keys", attention_backward_keys_kernel<T, width(), path()>,
            BackwardKeysTiles<width(), path()>{});
    } else {
      queue("attention_backward_wide_keys",
            attention_backward_wide_keys_kernel<T, width(), path(), of_keys>,
            BackwardKeysTiles<width(), path(), of_keys>{});
      queue("attention_backward_wide_values",
            attention_backward_wide_keys_kernel<T, width(), path(), of_values>,
            BackwardKeysTiles<width(), path(), of_values>{});
    }
  });
}

// dQ = scale dS K, and the gradient of a bias, dS itself, for bf16 and f16: the half of attention's
// backward that sums over keys. It computes three of the seven products; the floor, the prediction,
// and the reason for a separate kernel are at the beginning of this file.
//
// A block owns 128 queries, 32 per warp (for the reason see attention_forward.cuh), and walks over
// the keys with two stages of K and V in a ring and one barrier per step.
//   D <=   queries x keys   registers for dQ + S + dP   shared memory   blocks per SM
//   32     128 x 64         32 + 64 + 64                33 KiB          2 (registers)
//   64     128 x 64         64 + 64 + 64                65 KiB          2
//   96     128 x 32         96 + 32 + 32                73 KiB          2
//   128    128 x 32         128 + 32 + 32               97 KiB          2 (1 on A100)
//   256    64 x 16          128 + 8 + 8                 97 KiB          2 (1 on A100)
// (With a bias there are 32 keys for all.) d_bias costs 2 bytes per pair and is written for every
// pair, with zeros for masked ones.

template <int kWidth, AttentionPath kPath>
struct BackwardQueriesTiles {
  static constexpr int kRowTiles = kWidth <= 128 ? 2 : 1;  ///< tiles of 16 queries per warp
  static constexpr int kWarpQueries = 16 * kRowTiles;
  static constexpr int kQueries = kAttentionWarps * kWarpQueries;
  static constexpr int kKeys = kWidth > 128                                    ? 16
                               : kWidth <= 64 && kPath == AttentionPath::plain ? 64
                                                                               : 32;
  template <class T>
  using QueryTile = SharedTile<T, kQueries, kWidth>;
  template <class T>
  using KeyTile = SharedTile<T, kKeys, kWidth>;
  static constexpr std::size_t kSharedBytes =
      sizeof(std::uint16_t) * (2 * kQueries + 4 * kKeys) * kWidth + sizeof(float) * 2 * kQueries;
};

/// Writes the elements from `key` on of this warp's rows of d_bias, from packed pairs or zeros.
template <class T, int kM, int kK>
__device__ inline void store_d_bias(const std::uint32_t (&left)[kM][kK][4],
                                    const AttentionArgs<T>& a, T* d_bias, int query, int key) {
  const int row = query + lane_index() / 4, column = key + lane_index() % 4 * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = row + 16 * m + 8 * half;
      if (t >= a.queries) continue;
      T* const to = d_bias + static_cast<std::int64_t>(t) * a.keys;
#pragma unroll
      for (int n = 0; n < 2 * kK; ++n) {
        const int j = column + 8 * n;
        const std::uint32_t pair = left[m][n / 2][n % 2 * 2 + half];
        if (a.d_bias_pairs && j < a.keys) {
          *reinterpret_cast<std::uint32_t*>(to + j) = pair;
        } else {
          if (j < a.keys) to[j].bits = static_cast<std::uint16_t>(pair);
          if (j + 1 < a.keys) to[j + 1].bits = static_cast<std::uint16_t>(pair >> 16);
        }
      }
    }
}

template <class T, int kWidth, AttentionPath kPath>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    attention_backward_queries_kernel(const AttentionArgs<T> a) {
  follow_earlier();
  using Tiles = BackwardQueriesTiles<kWidth, kPath>;
  using KeyTile = typename Tiles::template KeyTile<T>;
  using QueryTile = typename Tiles::template QueryTile<T>;
  // On Blackwell ptxas spills unless only half a tile of scores and dP is in registers at a time.
  constexpr bool kHalved = kBlackwell && kWidth == 128 && kPath == AttentionPath::plain;
  constexpr int kPart = kHalved ? Tiles::kKeys / 2 : Tiles::kKeys;
  constexpr int kM = Tiles::kRowTiles, kN = kPart / 8, kWide = kWidth / 8;
  using PartTile = SharedTile<T, kPart, kWidth>;
  const int tiles = static_cast<int>(blocks_for(a.queries, Tiles::kQueries));
  const AttentionPlace place = attention_place(tiles, a.heads);
  // With a causal mask late queries cost most, so they come first.
  const int query = (tiles - 1 - place.tile) * Tiles::kQueries;
  const int row = warp_index() * Tiles::kWarpQueries, rows = a.queries - query - row;
  const KeyLimit limit = a.limit(place.sample);
  const int keys = limit(min(query + Tiles::kQueries, a.queries) - 1);
  const int warp_keys = rows > 0 ? limit(min(query + row + Tiles::kWarpQueries, a.queries) - 1) : 0;
  const int all_see = limit(query + row);
  const int begin = first_key_of_tiles<kPath, Tiles::kKeys>(limit, query);

  const QueryTile q{dynamic_shared<T>()}, d_out{q.data + q.kElements};
  T* const ring = d_out.data + d_out.kElements;
  const int kv_head = place.head / a.group;
  const std::int64_t statistics = a.statistics(place.sample, place.head);
  const T* const bias =
      kPath != AttentionPath::plain && a.bias ? a.bias_of(place.sample, place.head) : nullptr;
  T* const d_bias =
      kPath != AttentionPath::plain && a.d_bias ? a.d_bias + statistics * a.keys : nullptr;
  const auto load = [&](int first) {
    const KeyTile k{ring + first / Tiles::kKeys % 2 * 2 * KeyTile::kElements};
    const KeyTile v{k.data + k.kElements};
    load_tile<kPath>(k, a.row(a.k, place.sample, first, kv_head), a.k.position_stride, keys - first,
                     a.width);
    load_tile<kPath>(v, a.row(a.v, place.sample, first, kv_head), a.v.position_stride, keys - first,
                     a.width);
    ptx::cp_async_commit();
  };

  float d_q[kM][kWide][4];
  set_zero(d_q);
  if (begin < keys) {
    load_tile<kPath>(q, a.row(a.q, place.sample, query, place.head), a.q.position_stride,
                     a.queries - query, a.width);
    load_tile<kPath>(d_out, a.row(a.d_out, place.sample, query, place.head),
                     a.d_out.position_stride, a.queries - query, a.width);
    load(begin);
  }
  // Negated initial values of scores and dP for the block's queries, in shared memory because no
  // register is left for them.
  float* const sums = reinterpret_cast<float*>(ring + 4 * KeyTile::kElements);
  static_assert(Tiles::kQueries <= kAttentionThreads);
  const int mine = static_cast<int>(threadIdx.x);
  if (mine < Tiles::kQueries)
    sums[mine] =
        query + mine < a.queries ? raw_sum(a, a.log_sum_exp[statistics + query + mine]) : INFINITY;
  with_deltas<Tiles::kQueries, kAttentionThreads, kWidth, kPath != AttentionPath::general>(
      a, place.sample, place.head, query,
      [&](int t, float delta) { sums[t + Tiles::kQueries] = delta; });
  for (int first = begin; first < keys; first += Tiles::kKeys) {
    const bool works = first < warp_keys;
    float scores[kM][kN][4], d_p[kM][kN][4];
    start_scores<kPath>(scores, a, works ? bias : nullptr, query + row, first);
    ptx::cp_async_wait<0>();
    __syncthreads();  // this stage has arrived, and no warp uses the other any more
    if (first + Tiles::kKeys < keys) load(first + Tiles::kKeys);
    if (!works) continue;
    PartTile k{ring + first / Tiles::kKeys % 2 * 2 * KeyTile::kElements};
    PartTile v{k.data + KeyTile::kElements};
#pragma unroll 1
    for (int key = first; key < first + Tiles::kKeys; key += kPart) {
      if (key > first) {
        k.data += PartTile::kElements, v.data += PartTile::kElements;
        start_scores<kPath>(scores, a, bias, query + row, key);
      }
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* const at = sums + row + 16 * m + 8 * half + lane_index() / 4;
          const float sum = at[0], delta = at[Tiles::kQueries];
#pragma unroll
          for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i)
              scores[m][n][i] -= sum, d_p[m][n][i] = -delta;
        }
      add_rows_product<T>(scores, q, row, k);
      // On sm_120 ptxas spills at D = 64 if the steps of this product are unrolled, too.
      constexpr bool kTight = kBlackwell && kWidth == 64 && kPath == AttentionPath::plain;
      add_rows_product<T, kTight ? 1 : 2>(d_p, d_out, row, v);
      if constexpr (kPath != AttentionPath::plain)
        if (a.cap > 0)
          cap_gradients(scores, d_p, a, [&](int m, int, int i) {
            return sums[row + 16 * m + i / 2 * 8 + lane_index() / 4];
          });
      if (key + kPart > all_see) mask_scores(scores, limit, query + row, key);
      if constexpr (kPath != AttentionPath::plain)
        if (key < limit.first(query + row + Tiles::kWarpQueries - 1))
          mask_window(scores, limit, query + row, key);
      as_gradients(scores, d_p, a.scale_log2);
      std::uint32_t left[kM][kN / 2][4];
      as_left<T>(left, d_p);
      if (d_bias) store_d_bias(left, a, d_bias, query + row, key);
      add_product<T>(d_q, left, k);
    }
  }
  if (rows <= 0) return;
  if (d_bias) {
    const std::uint32_t nothing[kM][kN / 2][4] = {};
    const int done = static_cast<int>(blocks_for(warp_keys, Tiles::kKeys)) * Tiles::kKeys;
    for (int first = done; first < a.keys; first += Tiles::kKeys)
      store_d_bias(nothing, a, d_bias, query + row, first);
  }
  store_rows<kPath>(d_q, a.scale, q, row, a.row(a.d_q, place.sample, query + row, place.head),
                    a.d_q.position_stride, rows, a.width);
}

template <class T>
void launch_attention_backward_queries(const Stream& stream, const ops::AttentionProblem& p,
                                       const AttentionArgs<T>& a) {
  with_attention_path(p, a, [&](auto width, auto path) {
    using Tiles = BackwardQueriesTiles<width(), path()>;
    launch(stream, "attention_backward_queries",
           attention_backward_queries_kernel<T, width(), path()>,
           {attention_blocks(blocks_for(p.queries, Tiles::kQueries), p.heads, p.batch),
            kAttentionThreads, Tiles::kSharedBytes},
           a);
  });
}

}  // namespace choir::cuda
