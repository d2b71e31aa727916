#pragma once
// dQ = scale dS K on sm_90a, for the calls that hopper_takes() accepts: the half of attention's
// backward that sums over keys. S and dP are computed once more, for the reason given in
// attention_backward_keys.cuh.
//
// A block owns 128 queries of one head, 64 for each of two warp groups with their Q and dO in
// shared memory, and walks over 64 keys at a time, with K and V in a ring that the copy engine
// fills. The groups multiply as in attention_hopper_backward_keys.cuh, whose header has the floor.
// A step has three products: 6 D 8192 FLOPs, 12 D cycles of the tensor cores, beside 10 D of shared
// memory and 512 of exponentials.
//   D     shared memory (2 (Q + dO) + 2 (K + V))   registers for dQ + S + dP + dS
//   64    32 + 32 KiB                              32 + 32 + 32 + 16 of 240
//   128   64 + 64 KiB                              64 + 32 + 32 + 16 of 240
#include "kernels/attention/cuda/attention_hopper.cuh"

namespace choir::cuda {

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
        deltas[half] = t < a.queries ? a.delta[at] : 0.0f;
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
      const float scale[1][2] = {{a.scale, a.scale}};
      ptx::named_barrier(static_cast<unsigned>(role), ptx::kWarpGroup);
      const SharedTile<T, Block::kGroupQueries, kWidth> staged{queries.data};
      store_rows<AttentionPath::plain>(d_q, scale, staged, row,
                                       a.row(a.d_q, place.sample, query, place.head),
                                       a.d_q.position_stride, a.queries - query, a.width);
    }
  }
}

}  // namespace choir::cuda
