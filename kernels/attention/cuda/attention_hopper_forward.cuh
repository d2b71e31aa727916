#pragma once
// out = softmax(scale Q K^T) V for bf16 and f16 on sm_90a, for the calls that hopper_takes()
// accepts, and the log of every row's sum of exponentials, the same as that of
// attention_forward.cuh, from which every backward kernel begins.
//
// Shapes: Q, out [B, Tq, H, D], K, V [B, Tk, Hkv, D], by strides; log_sum_exp [B, H, Tq].
// A block owns 128 queries of one head and walks over 128 keys at a time. One thread starts the
// copies of tiles, two rounds ahead. Each of two warp groups multiplies 64 queries by a tile (wgmma
// m64n128k16, both operands of Q K^T in shared memory, P in registers), and starts the scores of
// the next tile before it takes the exponentials of this one, so that its softmax overlaps with its
// own P V and with the other group's products. Barriers in shared memory signal that a tile has
// arrived (its bytes) and that it is free (eight warps); the loop has no barrier of the whole
// block.
//   D     shared memory (Q + 2 (K + V))   registers for out + scores + P   blocks per SM
//   64    16 + 64 KiB                     32 + 64 + 32 of 240              1 (registers)
//   128   32 + 128 KiB                    64 + 64 + 32 of 240              1
// Floor of a multiprocessor and tile pair (128 x 128, per D): 4 D 128^2 FLOPs at 4,096 a cycle
// (bf16 dense) are 16 D cycles: 1,024 or 2,048. Shared memory: each warp group reads Q and K for S,
// and V for P V: 2 (64 + 128 + 128) D 2 bytes at 128 a cycle, 10 D cycles, below the floor.
// Exponentials: 128^2 at 16 a cycle, 1,024 cycles: as long as the products at D = 64, half as long
// at 128. The other softmax arithmetic, about 6 instructions a score at 128 lanes a cycle, takes
// 768. So at D = 64 the softmax is the bound, 1,800 cycles against 1,024: 57 % of the peak at best,
// if products are hidden completely; at D = 128 the products are the bound. One H100 reaches 609
// TFLOP/s for T = 4096, not causal, at D = 128 (predicted were 550; FlashAttention-3 without its
// hand-over of turns reaches 570) and 430 at D = 64 (370); causal at T = 1024 250 for D = 64, where
// half of the last tiles is masked and a block's start is not hidden. cuDNN: 614, 447 and 322. Next
// levers: groups that take turns by named barriers, a persistent grid, three groups at D = 64.
#include "kernels/attention/cuda/attention_hopper.cuh"
#include "kernels/attention/cuda/attention_tiles.cuh"

namespace choir::cuda {

template <class T, int kWidth>
struct HopperForward {
  static constexpr int kGroupQueries = 64, kQueries = kHopperConsumers * kGroupQueries;
  static constexpr int kKeys = 128, kStages = 2;
  using QueryTile = BoxTile<T, kGroupQueries, kWidth>;
  using KeyTile = BoxTile<T, kKeys, kWidth>;

  /// Barriers that signal the arrival of a tile and that it is free again.
  struct Barriers {
    ptx::Barrier queries, keys[kStages], values[kStages], no_keys[kStages], no_values[kStages];
  };
  static constexpr std::size_t kTileBytes =
      kHopperConsumers * QueryTile::kBytes + 2 * kStages * KeyTile::kBytes;
  static constexpr std::size_t kSharedBytes = kTileBytes + sizeof(Barriers);
  static_assert(kSharedBytes <= kHopperSharedBytes);

  T* memory;

  __device__ QueryTile queries(int group) const { return {memory + group * QueryTile::kElements}; }
  __device__ KeyTile keys(int stage) const {
    return {memory + kHopperConsumers * QueryTile::kElements + 2 * stage * KeyTile::kElements};
  }
  __device__ KeyTile values(int stage) const { return {keys(stage).data + KeyTile::kElements}; }
  __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(memory + kTileBytes / sizeof(T));
  }
  __device__ void init_barriers() const {
    Barriers& b = barriers();
    ptx::barrier_init(&b.queries, 1);
    for (int s = 0; s < kStages; ++s) {
      ptx::barrier_init(&b.keys[s], 1), ptx::barrier_init(&b.values[s], 1);
      ptx::barrier_init(&b.no_keys[s], kHopperReaders);
      ptx::barrier_init(&b.no_values[s], kHopperReaders);
    }
    ptx::fence_async_proxy();
  }
};

/// The work of one block.
struct HopperForwardWork {
  AttentionPlace place;
  int query, begin, steps;  ///< first query; first key and tiles of keys
};

/// Run by the thread that starts the copies of the block.
template <class T, int kWidth>
__device__ inline void feed_attention(const HopperForward<T, kWidth>& block,
                                      const HopperForwardWork& work, int kv_head,
                                      const CUtensorMap& q, const CUtensorMap& k,
                                      const CUtensorMap& v) {
  using Block = HopperForward<T, kWidth>;
  auto& b = block.barriers();
  ptx::barrier_arrive_expecting(&b.queries, kHopperConsumers * Block::QueryTile::kBytes);
  for (int g = 0; g < kHopperConsumers; ++g)
    block.queries(g).load(q, work.place.head, work.query + g * Block::kGroupQueries,
                          work.place.sample, &b.queries);
  Ring<Block::kStages> ring;
  for (int step = 0; step < work.steps; ++step, ring.advance()) {
    const int s = ring.stage, key = work.begin + step * Block::kKeys;
    // In the first round every stage is free: the phase before the first counts as ended.
    ptx::barrier_wait(&b.no_keys[s], ring.parity ^ 1);
    ptx::barrier_arrive_expecting(&b.keys[s], Block::KeyTile::kBytes);
    block.keys(s).load(k, kv_head, key, work.place.sample, &b.keys[s]);
    ptx::barrier_wait(&b.no_values[s], ring.parity ^ 1);
    ptx::barrier_arrive_expecting(&b.values[s], Block::KeyTile::kBytes);
    block.values(s).load(v, kv_head, key, work.place.sample, &b.values[s]);
  }
}

template <class T, int kWidth, AttentionPath kPath>
__global__ void __launch_bounds__(kHopperThreads, 1)
    attention_hopper_forward_kernel(const __grid_constant__ CUtensorMap q_map,
                                    const __grid_constant__ CUtensorMap k_map,
                                    const __grid_constant__ CUtensorMap v_map,
                                    const __grid_constant__ AttentionArgs<T> a) {
  follow_earlier();
  if constexpr (ptx::kHopper) {
    using Block = HopperForward<T, kWidth>;
    constexpr int kN = Block::kKeys / 8, kWide = kWidth / 8;
    const Block block{reinterpret_cast<T*>(ptx::swizzled_shared())};
    const int tiles = static_cast<int>(blocks_for(a.queries, Block::kQueries));
    HopperForwardWork work{attention_place(tiles, a.heads), 0, 0, 0};
    // With a causal mask late queries cost most, so they come first.
    work.query = (tiles - 1 - work.place.tile) * Block::kQueries;
    const KeyLimit limit = a.limit(work.place.sample);
    const int keys = limit(min(work.query + Block::kQueries, a.queries) - 1);
    work.begin = first_key_of_tiles<kPath, Block::kKeys>(limit, work.query);
    work.steps = (keys - work.begin + Block::kKeys - 1) / Block::kKeys;
    if (threadIdx.x == 0) block.init_barriers();
    __syncthreads();

    const int role = static_cast<int>(threadIdx.x / ptx::kWarpGroup);
    if (role == 0) {
      ptx::give_registers<kProducerRegisters>();
      if (threadIdx.x == 0)
        feed_attention(block, work, work.place.head / a.group, q_map, k_map, v_map);
    } else {
      ptx::take_registers<kConsumerRegisters>();
      auto& b = block.barriers();
      const auto queries = block.queries(role - 1);
      const int warp_row = warp_index() % (ptx::kWarpGroup / kWarp) * 16;
      const int query = work.query + (role - 1) * Block::kGroupQueries + warp_row;
      const int all_see = limit(query);
      float scores[1][kN][4], out[1][kWide][4];
      std::uint32_t p[1][kN / 2][4];
      OnlineSoftmax<1> softmax;
      softmax.reset();
      set_zero(out);
      const auto mask = [&](int first) {
        if (first + Block::kKeys > all_see) mask_scores(scores, limit, query, first);
        if constexpr (kPath != AttentionPath::plain)
          if (first < limit.first(query + 15)) mask_window(scores, limit, query, first);
      };
      // `out` may still be written by a product, so its factor is applied later.
      float shrink[2] = {1, 1};
      const auto soften = [&] {
        float next[1][2];
        const bool raised = softmax.exceeded(scores, a.scale_log2, next);
        if (raised)
          for (int half = 0; half < 2; ++half)
            shrink[half] = softmax.raise(0, half, next[0][half], a.scale_log2);
        softmax.exponents(scores, a.scale_log2);
        return raised;
      };
      const auto arrive = [](ptx::Barrier* barrier) {
        if (lane_index() == 0) ptx::barrier_arrive(barrier);
      };

      ptx::barrier_wait(&b.queries, 0);
      Ring<Block::kStages> ring;
      ptx::barrier_wait(&b.keys[0], 0);
      ptx::wgmma_fence(scores[0]);
      start_rows_product<T>(scores[0], queries, block.keys(0));
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>(scores[0]);
      arrive(&b.no_keys[0]);
      mask(work.begin);
      soften();  // out is still zero
      as_left<T>(p, scores);
      for (int step = 1; step < work.steps; ++step) {
        const Ring<Block::kStages> last = ring;
        ring.advance();
        // These values were requested before these keys, so waiting for both first costs nothing,
        // and it leaves no branch between the products.
        ptx::barrier_wait(&b.values[last.stage], last.parity);
        ptx::barrier_wait(&b.keys[ring.stage], ring.parity);
        ptx::wgmma_fence(scores[0], out[0]);
        start_rows_product<T>(scores[0], queries, block.keys(ring.stage));
        ptx::wgmma_commit();
        start_product<T>(out[0], p[0], block.values(last.stage));
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>(scores[0]);
        arrive(&b.no_keys[ring.stage]);
        mask(work.begin + step * Block::kKeys);
        const bool raised = soften();
        ptx::wgmma_wait<0>(out[0]);
        arrive(&b.no_values[last.stage]);
        if (raised)
          for (int half = 0; half < 2; ++half) softmax.rescale(out[0], half, shrink[half]);
        as_left<T>(p, scores);
      }
      ptx::barrier_wait(&b.values[ring.stage], ring.parity);
      ptx::wgmma_fence(out[0]);
      start_product<T>(out[0], p[0], block.values(ring.stage));
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>(out[0]);

      float inverse[1][2];
      softmax.finish(inverse, a.scale_log2,
                     a.log_sum_exp
                         ? a.log_sum_exp + a.statistics(work.place.sample, work.place.head)
                         : nullptr,
                     query, a.queries);
      // No warp of the group reads its queries any more: their memory is used to assemble whole
      // chunks.
      ptx::named_barrier(static_cast<unsigned>(role), ptx::kWarpGroup);
      const SharedTile<T, Block::kGroupQueries, kWidth> staged{queries.data};
      store_rows<AttentionPath::plain>(out, inverse, staged, warp_row,
                                       a.row(a.out, work.place.sample, query, work.place.head),
                                       a.out.position_stride, a.queries - query, a.width);
    }
  }
}

/// f(kernel, shared bytes) with the kernel that computes the call.
template <class T, class F>
auto with_hopper_forward(const ops::AttentionProblem& p, const F& f) {
  const auto of_width = [&](auto width) {
    using Block = HopperForward<T, width()>;
    return p.windowed() || p.divided()
               ? f(attention_hopper_forward_kernel<T, width(), AttentionPath::biased>,
                   Block::kSharedBytes)
               : f(attention_hopper_forward_kernel<T, width(), AttentionPath::plain>,
                   Block::kSharedBytes);
  };
  if (p.head_width == 64) return of_width(std::integral_constant<int, 64>{});
  return of_width(std::integral_constant<int, 128>{});
}

template <class T>
bool hopper_has_attention(const ops::AttentionProblem& p) {
  return with_hopper_forward<T>(p,
                                [](auto kernel, std::size_t) { return has_hopper_code(kernel); });
}

template <class T>
void launch_attention_hopper_forward(const Stream& stream, const ops::AttentionProblem& p,
                                     const AttentionArgs<T>& a) {
  // This part does not depend on the width of a head.
  using Block = HopperForward<T, 64>;
  CUtensorMap q, k, v;
  set_boxes(q, a.q, p, p.heads, p.queries, Block::kGroupQueries);
  set_boxes(k, a.k, p, p.kv_heads, p.keys, Block::kKeys);
  set_boxes(v, a.v, p, p.kv_heads, p.keys, Block::kKeys);
  with_hopper_forward<T>(p, [&](auto kernel, std::size_t shared) {
    launch_hopper(stream, "attention_hopper_forward", kernel,
                  {attention_blocks(blocks_for(p.queries, Block::kQueries), p.heads, p.batch),
                   kHopperThreads, shared},
                  q, k, v, a);
  });
}

}  // namespace choir::cuda
