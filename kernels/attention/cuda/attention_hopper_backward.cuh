#pragma once
// Backward of attention on sm_90a for bf16 and f16 in two kernels, one for dK and dV and one for
// dQ, and their launch.
//
// dK = scale dS^T Q and dV = P^T dO on sm_90a, for the calls that hopper_takes() accepts: the half
// of attention's backward that sums over queries. As in attention_backward.cuh, S^T and dP^T are
// recomputed with keys along the rows, so that the registers of P^T and dS^T are used as left
// operands without a shuffle.
//
// A block owns 128 keys of one K/V head, 64 for each of two warp groups, and walks through the
// queries of all heads of its group, 64 at a time. The copy engine loads Q and dO two rounds ahead,
// and a warp beside it loads the initial values of their scores and dP. A step of a group has four
// products, wgmma m64n64k16 twice and m64nDk16 twice; sums stay in registers over the whole walk,
// in a fixed order.
//   D     shared memory (2 (K + V) + 2 (Q + dO))   registers for dK + dV + S + dP + P + dS
//   64    32 + 32 KiB                              32 + 32 + 32 + 32 + 16 + 16 of 232
//   128   64 + 64 KiB                              64 + 64 + 32 + 32 + 16 + 16 of 232
// Floor of backward: 10 D FLOPs per visible pair; this half computes 8 D and the other 6 D. A step
// of a multiprocessor (128 keys x 64 queries) is 8 D 8192 FLOPs, 16 D cycles at 4,096 a cycle.
// Shared memory: each group reads 64 rows of K, V, Q and dO for the scores and Q and dO once more:
// 2 6 64 D 2 bytes, 12 D cycles at 128 a cycle. Exponentials take 512 cycles and the rest of the
// softmax 600, which a group does not hide by itself: at D = 64 as long as the products (1,024
// cycles), at D = 128 half as long. With the other half, in TFLOP/s of the floor's 10 D: 412 (D =
// 128) and 324 on one H100 at T = 4096, not causal; predicted were 400 and 300. cuDNN,
// deterministic: 444 and 238.
//
// Delta is computed by the kernel of dQ, which is launched first: O is read once and dO comes from
// L2, where the copies of that kernel have brought it. A kernel of its own reads both, 1.8 ms of a
// step of 86.4 for the GPT of 85M parameters on an H100 (cuDNN's); predicted here are 0.9, hidden
// behind the first copies.
// The order of the loops: a single kernel with five products that adds dQ in f32 would need 10 D
// FLOPs and one exponential a pair, at D = 64 2,400 instead of 4,000 cycles a step if nothing
// overlaps. For that GPT this makes 9.4 ms of our 15.7, and 2.1 more to zero and to convert dQ;
// cuDNN takes 12.5 in all. But its atomics do not give the same bits each time, and partial sums in
// a fixed order cost more than they save (attention_backward.cuh). So dQ keeps a walk of its own
// over the keys and no pass in f32: 16.6 ms with delta, where cuDNN's deterministic backward
// takes 18.9.

#include "kernels/attention/cuda/attention_backward.cuh"
#include "kernels/attention/cuda/attention_hopper.cuh"

namespace choir::cuda {

template <class T, int kWidth>
struct HopperBackwardKeys {
  static constexpr int kGroupKeys = 64, kKeys = kHopperConsumers * kGroupKeys;
  static constexpr int kQueries = 64, kStages = 2;
  /// Registers: two of the loading warps have work here and keep walks in registers.
  static constexpr int kFeeding = 40, kMultiplying = 232;
  static_assert(kFeeding + kHopperConsumers * kMultiplying <= 3 * 168);
  using Tile = BoxTile<T, 64, kWidth>;

  struct Barriers {
    ptx::Barrier keys, queries[kStages], no_queries[kStages];
  };
  struct Statistics {
    float sums[kQueries], deltas[kQueries];
  };
  static constexpr int kTiles = 2 * kHopperConsumers + 2 * kStages;
  static constexpr std::size_t kSharedBytes =
      kTiles * Tile::kBytes + kStages * sizeof(Statistics) + sizeof(Barriers);
  static_assert(kSharedBytes <= kHopperSharedBytes);

  T* memory;

  __device__ Tile keys(int group) const { return {memory + 2 * group * Tile::kElements}; }
  __device__ Tile values(int group) const { return {keys(group).data + Tile::kElements}; }
  __device__ Tile queries(int stage) const {
    return {memory + 2 * (kHopperConsumers + stage) * Tile::kElements};
  }
  __device__ Tile d_out(int stage) const { return {queries(stage).data + Tile::kElements}; }
  __device__ Statistics& statistics(int stage) const {
    return reinterpret_cast<Statistics*>(memory + kTiles * Tile::kElements)[stage];
  }
  __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(&statistics(kStages));
  }
  __device__ void init_barriers() const {
    Barriers& b = barriers();
    ptx::barrier_init(&b.keys, 1);
    for (int s = 0; s < kStages; ++s) {
      // The thread that starts the copies, and the warp that loads statistics.
      ptx::barrier_init(&b.queries[s], 1 + kWarp);
      ptx::barrier_init(&b.no_queries[s], kHopperReaders);
    }
    ptx::fence_async_proxy();
  }
};

template <class T, int kWidth, AttentionPath kPath>
__global__ void __launch_bounds__(kHopperThreads, 1)
    attention_hopper_keys_kernel(const __grid_constant__ CUtensorMap q_map,
                                 const __grid_constant__ CUtensorMap k_map,
                                 const __grid_constant__ CUtensorMap v_map,
                                 const __grid_constant__ CUtensorMap d_out_map,
                                 const __grid_constant__ AttentionArgs<T> a) {
  follow_earlier();
  if constexpr (ptx::kHopper) {
    using Block = HopperBackwardKeys<T, kWidth>;
    constexpr int kQ = Block::kQueries, kN = kQ / 8, kWide = kWidth / 8;
    const Block block{reinterpret_cast<T*>(ptx::swizzled_shared())};
    const int tiles = static_cast<int>(blocks_for(a.keys, Block::kKeys));
    const AttentionPlace place = attention_place(tiles, a.heads / a.group);
    const int first_key = place.tile * Block::kKeys;
    const KeyLimit limit = a.limit(place.sample);
    QueryWalk walk{0, static_cast<int>(blocks_for(a.queries, kQ)), place.head * a.group};
    if (limit.causal && first_key > limit.offset) walk.first = (first_key - limit.offset) / kQ;
    if constexpr (kPath != AttentionPath::plain)
      walk.per_head =
          static_cast<int>(blocks_for(limit.behind(first_key + Block::kKeys - 1, a.queries), kQ));
    walk.per_head -= walk.first;
    const int steps = walk.per_head > 0 ? a.group * walk.per_head : 0;
    if (threadIdx.x == 0) block.init_barriers();
    __syncthreads();

    auto& b = block.barriers();
    const int role = static_cast<int>(threadIdx.x / ptx::kWarpGroup);
    Ring<Block::kStages> ring;
    if (role == 0) {
      ptx::give_registers<Block::kFeeding>();
      if (steps > 0 && threadIdx.x == 0) {
        ptx::barrier_arrive_expecting(&b.keys, 2 * kHopperConsumers * Block::Tile::kBytes);
        for (int g = 0; g < kHopperConsumers; ++g) {
          const int key = first_key + g * Block::kGroupKeys;
          block.keys(g).load(k_map, place.head, key, place.sample, &b.keys);
          block.values(g).load(v_map, place.head, key, place.sample, &b.keys);
        }
        for (int step = 0; step < steps; ++step, ring.advance()) {
          const int s = ring.stage, query = walk.tile_of(step) * kQ, head = walk.head_of(step);
          ptx::barrier_wait(&b.no_queries[s], ring.parity ^ 1);
          ptx::barrier_arrive_expecting(&b.queries[s], 2 * Block::Tile::kBytes);
          block.queries(s).load(q_map, head, query, place.sample, &b.queries[s]);
          block.d_out(s).load(d_out_map, head, query, place.sample, &b.queries[s]);
        }
      } else if (warp_index() == 1) {
        for (int step = 0; step < steps; ++step, ring.advance()) {
          const int s = ring.stage, query = walk.tile_of(step) * kQ;
          const std::int64_t head = a.statistics(place.sample, walk.head_of(step));
          ptx::barrier_wait(&b.no_queries[s], ring.parity ^ 1);
          auto& statistics = block.statistics(s);
          for (int i = lane_index(); i < kQ; i += kWarp) {
            const bool exists = query + i < a.queries;
            statistics.sums[i] = exists ? raw_sum(a, a.log_sum_exp[head + query + i]) : INFINITY;
            statistics.deltas[i] = exists ? a.delta[head + query + i] : 0.0f;
          }
          ptx::barrier_arrive(&b.queries[s]);
        }
      }
    } else {
      ptx::take_registers<Block::kMultiplying>();
      const auto keys = block.keys(role - 1), values = block.values(role - 1);
      const int row = warp_index() % (ptx::kWarpGroup / kWarp) * 16;
      const int key = first_key + (role - 1) * Block::kGroupKeys + row;
      float d_k[1][kWide][4], d_v[1][kWide][4], scores[1][kN][4], d_p[1][kN][4];
      set_zero(d_k), set_zero(d_v);
      if (steps > 0) ptx::barrier_wait(&b.keys, 0);
      for (int step = 0; step < steps; ++step, ring.advance()) {
        const int s = ring.stage, query = walk.tile_of(step) * kQ;
        ptx::barrier_wait(&b.queries[s], ring.parity);
        ptx::wgmma_fence(scores[0], d_p[0]);
        start_rows_product<T>(scores[0], keys, block.queries(s));
        start_rows_product<T>(d_p[0], values, block.d_out(s));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>(scores[0], d_p[0]);
        const auto& statistics = block.statistics(s);
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = 8 * n + lane_index() % 4 * 2 + i % 2;
            scores[0][n][i] -= statistics.sums[column];
            d_p[0][n][i] -= statistics.deltas[column];
          }
        if (key + 16 > limit(query)) mask_scores_transposed(scores, limit, key, query);
        if constexpr (kPath != AttentionPath::plain)
          if (key < limit.first(query + kQ - 1)) mask_window_transposed(scores, limit, key, query);
        as_gradients(scores, d_p, a.scale_log2);
        std::uint32_t p[1][kN / 2][4], d_s[1][kN / 2][4];
        as_left<T>(p, scores), as_left<T>(d_s, d_p);
        ptx::wgmma_fence(d_v[0], d_k[0]);
        start_product<T>(d_v[0], p[0], block.d_out(s));
        start_product<T>(d_k[0], d_s[0], block.queries(s));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>(d_v[0], d_k[0]);
        if (lane_index() == 0) ptx::barrier_arrive(&b.no_queries[s]);
      }
      const int rows = a.keys - key;
      // No warp of the group reads its keys and values any more.
      ptx::named_barrier(static_cast<unsigned>(role), ptx::kWarpGroup);
      const SharedTile<T, Block::kGroupKeys, kWidth> staged_k{keys.data}, staged_v{values.data};
      store_rows<AttentionPath::plain>(d_k, a.scale, staged_k, row,
                                       a.row(a.d_k, place.sample, key, place.head),
                                       a.d_k.position_stride, rows, a.width);
      store_rows<AttentionPath::plain>(d_v, 1.0f, staged_v, row,
                                       a.row(a.d_v, place.sample, key, place.head),
                                       a.d_v.position_stride, rows, a.width);
    }
  }
}

// dQ = scale dS K on sm_90a, for the calls that hopper_takes() accepts: the half of attention's
// backward that sums over keys. S and dP are computed once more, for the reason given in
// attention_backward.cuh.
//
// A block owns 128 queries of one head, 64 for each of two warp groups with their Q and dO in
// shared memory, and walks over 64 keys at a time, with K and V in a ring that the copy engine
// fills. The groups multiply as in the kernel of keys above, whose comment has the floor.
// A step has three products: 6 D 8192 FLOPs, 12 D cycles of the tensor cores, beside 10 D of shared
// memory and 512 of exponentials.
//   D     shared memory (2 (Q + dO) + 2 (K + V))   registers for dQ + S + dP + dS
//   64    32 + 32 KiB                              32 + 32 + 32 + 16 of 240
//   128   64 + 64 KiB                              64 + 32 + 32 + 16 of 240

template <class T, int kWidth>
struct HopperBackwardQueries {
  static constexpr int kGroupQueries = 64, kQueries = kHopperConsumers * kGroupQueries;
  static constexpr int kKeys = 64, kStages = 2;
  using Tile = BoxTile<T, 64, kWidth>;

  struct Barriers {
    ptx::Barrier queries, keys[kStages], no_keys[kStages];
  };
  static constexpr int kTiles = 2 * kHopperConsumers + 2 * kStages;
  static constexpr std::size_t kSharedBytes = kTiles * Tile::kBytes + sizeof(Barriers);
  static_assert(kSharedBytes <= kHopperSharedBytes);

  T* memory;

  __device__ Tile queries(int group) const { return {memory + 2 * group * Tile::kElements}; }
  __device__ Tile d_out(int group) const { return {queries(group).data + Tile::kElements}; }
  __device__ Tile keys(int stage) const {
    return {memory + 2 * (kHopperConsumers + stage) * Tile::kElements};
  }
  __device__ Tile values(int stage) const { return {keys(stage).data + Tile::kElements}; }
  __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(memory + kTiles * Tile::kElements);
  }
  __device__ void init_barriers() const {
    Barriers& b = barriers();
    ptx::barrier_init(&b.queries, 1);
    for (int s = 0; s < kStages; ++s)
      ptx::barrier_init(&b.keys[s], 1), ptx::barrier_init(&b.no_keys[s], kHopperReaders);
    ptx::fence_async_proxy();
  }
};

template <class T, int kWidth, AttentionPath kPath>
__global__ void __launch_bounds__(kHopperThreads, 1)
    attention_hopper_queries_kernel(const __grid_constant__ CUtensorMap q_map,
                                    const __grid_constant__ CUtensorMap k_map,
                                    const __grid_constant__ CUtensorMap v_map,
                                    const __grid_constant__ CUtensorMap d_out_map,
                                    const __grid_constant__ AttentionArgs<T> a) {
  follow_earlier();
  if constexpr (ptx::kHopper) {
    using Block = HopperBackwardQueries<T, kWidth>;
    constexpr int kN = Block::kKeys / 8, kWide = kWidth / 8;
    const Block block{reinterpret_cast<T*>(ptx::swizzled_shared())};
    const int tiles = static_cast<int>(blocks_for(a.queries, Block::kQueries));
    const AttentionPlace place = attention_place(tiles, a.heads);
    const int first_query = (tiles - 1 - place.tile) * Block::kQueries;
    const KeyLimit limit = a.limit(place.sample);
    const int end = limit(min(first_query + Block::kQueries, a.queries) - 1);
    const int begin = first_key_of_tiles<kPath, Block::kKeys>(limit, first_query);
    if (threadIdx.x == 0) block.init_barriers();
    __syncthreads();

    auto& b = block.barriers();
    const int role = static_cast<int>(threadIdx.x / ptx::kWarpGroup);
    Ring<Block::kStages> ring;
    if (role == 0) {
      ptx::give_registers<kProducerRegisters>();
      if (threadIdx.x == 0) {
        ptx::barrier_arrive_expecting(&b.queries, 2 * kHopperConsumers * Block::Tile::kBytes);
        for (int g = 0; g < kHopperConsumers; ++g) {
          const int query = first_query + g * Block::kGroupQueries;
          block.queries(g).load(q_map, place.head, query, place.sample, &b.queries);
          block.d_out(g).load(d_out_map, place.head, query, place.sample, &b.queries);
        }
        for (int key = begin; key < end; key += Block::kKeys, ring.advance()) {
          const int s = ring.stage, head = place.head / a.group;
          ptx::barrier_wait(&b.no_keys[s], ring.parity ^ 1);
          ptx::barrier_arrive_expecting(&b.keys[s], 2 * Block::Tile::kBytes);
          block.keys(s).load(k_map, head, key, place.sample, &b.keys[s]);
          block.values(s).load(v_map, head, key, place.sample, &b.keys[s]);
        }
      }
    } else {
      ptx::take_registers<kConsumerRegisters>();
      const auto queries = block.queries(role - 1), d_out = block.d_out(role - 1);
      const int row = warp_index() % (ptx::kWarpGroup / kWarp) * 16;
      const int query = first_query + (role - 1) * Block::kGroupQueries + row;
      const int all_see = limit(query);
      float sums[2], deltas[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = query + 8 * half + lane_index() / 4;
        const std::int64_t at = a.statistics(place.sample, place.head) + t;
        sums[half] = t < a.queries ? raw_sum(a, a.log_sum_exp[at]) : INFINITY;
        const float delta = warp_reduce<Sum, 4>(
            share_of_delta<kWidth, 4, true>(a, place.sample, place.head, min(t, a.queries - 1)));
        deltas[half] = t < a.queries ? delta : 0.0f;
        if (lane_index() % 4 == 0 && t < a.queries) a.delta[at] = delta;
      }
      float d_q[1][kWide][4], scores[1][kN][4], d_p[1][kN][4];
      set_zero(d_q);
      ptx::barrier_wait(&b.queries, 0);
      for (int key = begin; key < end; key += Block::kKeys, ring.advance()) {
        const int s = ring.stage;
        ptx::barrier_wait(&b.keys[s], ring.parity);
        ptx::wgmma_fence(scores[0], d_p[0]);
        start_rows_product<T>(scores[0], queries, block.keys(s));
        start_rows_product<T>(d_p[0], d_out, block.values(s));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>(scores[0], d_p[0]);
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) scores[0][n][i] -= sums[i / 2], d_p[0][n][i] -= deltas[i / 2];
        if (key + Block::kKeys > all_see) mask_scores(scores, limit, query, key);
        if constexpr (kPath != AttentionPath::plain)
          if (key < limit.first(query + 15)) mask_window(scores, limit, query, key);
        as_gradients(scores, d_p, a.scale_log2);
        std::uint32_t d_s[1][kN / 2][4];
        as_left<T>(d_s, d_p);
        ptx::wgmma_fence(d_q[0]);
        start_product<T>(d_q[0], d_s[0], block.keys(s));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>(d_q[0]);
        if (lane_index() == 0) ptx::barrier_arrive(&b.no_keys[s]);
      }
      ptx::named_barrier(static_cast<unsigned>(role), ptx::kWarpGroup);
      const SharedTile<T, Block::kGroupQueries, kWidth> staged{queries.data};
      store_rows<AttentionPath::plain>(d_q, a.scale, staged, row,
                                       a.row(a.d_q, place.sample, query, place.head),
                                       a.d_q.position_stride, a.queries - query, a.width);
    }
  }
}

// Host: launches both halves of attention's backward on sm_90a. The kernel of queries is the first,
// because it computes the deltas for the other.

template <class T, int kWidth, AttentionPath kPath>
void launch_hopper_backward_of(const Stream& stream, const ops::AttentionProblem& p,
                               const AttentionArgs<T>& a) {
  using Keys = HopperBackwardKeys<T, kWidth>;
  using Queries = HopperBackwardQueries<T, kWidth>;
  CUtensorMap q, k, v, d_out;
  set_boxes(q, a.q, p, p.heads, p.queries, Keys::Tile::kRows);
  set_boxes(d_out, a.d_out, p, p.heads, p.queries, Keys::Tile::kRows);
  set_boxes(k, a.k, p, p.kv_heads, p.keys, Keys::Tile::kRows);
  set_boxes(v, a.v, p, p.kv_heads, p.keys, Keys::Tile::kRows);
  launch_hopper(stream, "attention_hopper_backward_queries",
                attention_hopper_queries_kernel<T, kWidth, kPath>,
                {attention_blocks(blocks_for(p.queries, Queries::kQueries), p.heads, p.batch),
                 kHopperThreads, Queries::kSharedBytes},
                q, k, v, d_out, a);
  launch_hopper(stream, "attention_hopper_backward_keys",
                attention_hopper_keys_kernel<T, kWidth, kPath>,
                {attention_blocks(blocks_for(p.keys, Keys::kKeys), p.kv_heads, p.batch),
                 kHopperThreads, Keys::kSharedBytes},
                q, k, v, d_out, a);
}

template <class T>
void launch_attention_hopper_backward(const Stream& stream, const ops::AttentionProblem& p,
                                      const AttentionArgs<T>& a) {
  const auto of_width = [&](auto width) {
    p.windowed() || p.divided()
        ? launch_hopper_backward_of<T, width(), AttentionPath::biased>(stream, p, a)
        : launch_hopper_backward_of<T, width(), AttentionPath::plain>(stream, p, a);
  };
  if (p.head_width == 64)
    of_width(std::integral_constant<int, 64>{});
  else
    of_width(std::integral_constant<int, 128>{});
}

}  // namespace choir::cuda
