#pragma once
// Stable sort of 32-bit keys with their original positions, one digit of a few bits after the other
// from the lowest (Knuth, TAOCP 3, 5.2.5). A pass has three kernels: every tile of keys counts its
// digits; the counts of each digit are summed over the tiles; every tile moves its keys behind
// those of smaller digits, of earlier tiles, and of earlier warps and lanes. Only integers are
// used, and the result is deterministic. Floor: 16 bytes per key and pass, which is negligible
// compared with the sorted rows; the launches dominate.
#include "kernels/cuda/collective.cuh"
#include "kernels/embedding/embedding_plan.hpp"

namespace choir::cuda {

constexpr int kSortThreads = 256;
constexpr int kSortWarps = kSortThreads / kWarp;
constexpr int kKeysPerLane = static_cast<int>(EmbeddingPlan::kSortTile) / kSortThreads;
constexpr int kMaxDigits = 1 << EmbeddingPlan::kMaxDigitBits;
static_assert(kMaxDigits <= kSortThreads);

/// One pass over keys[i] with positions order[i]. In the first pass the keys are ids minus
/// `first_id` if in [0, limit) (others become `limit`), with positions i.
struct SortPass {
  const std::int32_t* ids;  ///< nullptr after the first pass
  std::int32_t first_id;
  std::uint32_t limit;
  const std::uint32_t *keys, *order;
  std::uint32_t *keys_out, *order_out;
  std::uint32_t *tile_counts, *digit_counts;  ///< [digits, tiles], [digits]
  std::int64_t n;
  int shift, digits;

  __device__ std::uint32_t key(std::int64_t i) const {
    if (ids == nullptr) return keys[i];
    const auto id = static_cast<std::uint32_t>(ids[i] - first_id);
    return id < limit ? id : limit;
  }
  __device__ std::uint32_t digit(std::uint32_t key) const {
    return key >> shift & static_cast<std::uint32_t>(digits - 1);
  }
};

/// Index of the k-th key of this lane; the keys of a warp are neighbours.
__device__ inline std::int64_t sort_index(int k) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  return std::int64_t{blockIdx.x} * EmbeddingPlan::kSortTile + (warp * kKeysPerLane + k) * kWarp +
         lane;
}

/// tile_counts[d, tile] = number of keys of the tile with digit d. Grid: tiles.
__global__ void __launch_bounds__(kSortThreads) count_digits_kernel(SortPass pass) {
  CHOIR_SHARED_ARRAY(std::uint32_t, counts, kMaxDigits);
  const int thread = static_cast<int>(threadIdx.x);
  counts[thread] = 0;
  __syncthreads();
  for (int k = 0; k < kKeysPerLane; ++k)
    if (sort_index(k) < pass.n) atomicAdd(counts + pass.digit(pass.key(sort_index(k))), 1u);
  __syncthreads();
  if (thread < pass.digits)
    pass.tile_counts[std::int64_t{thread} * gridDim.x + blockIdx.x] = counts[thread];
}

/// tile_counts[d, tile] becomes the sum over earlier tiles, digit_counts[d] the sum over all tiles.
/// Grid: digits.
__global__ void __launch_bounds__(kSortThreads)
    sum_tiles_kernel(SortPass pass, std::int64_t tiles) {
  CHOIR_SHARED_ARRAY(std::uint32_t, scratch, kSortWarps);
  std::uint32_t* counts = pass.tile_counts + blockIdx.x * tiles;
  std::uint32_t before = 0;
  for (std::int64_t first = 0; first < tiles; first += kSortThreads) {
    const std::int64_t t = first + threadIdx.x;
    const std::uint32_t count = t < tiles ? counts[t] : 0;
    std::uint32_t all;
    const std::uint32_t earlier = block_exclusive_sum<kSortThreads>(count, all, scratch);
    if (t < tiles) counts[t] = before + earlier;
    before += all;
  }
  if (threadIdx.x == 0) pass.digit_counts[blockIdx.x] = before;
}

/// Moves every key with its position to its index by this digit. Grid: tiles.
__global__ void __launch_bounds__(kSortThreads) move_keys_kernel(SortPass pass) {
  CHOIR_SHARED_ARRAY(std::uint32_t, next, kSortWarps * kMaxDigits);  // index of a warp's next key
  CHOIR_SHARED_ARRAY(std::uint32_t, scratch, kSortWarps);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  std::uint32_t* mine = next + thread / kWarp * kMaxDigits;
  for (int i = thread; i < kSortWarps * kMaxDigits; i += kSortThreads) next[i] = 0;
  __syncthreads();
  std::uint32_t keys[kKeysPerLane];
#pragma unroll
  for (int k = 0; k < kKeysPerLane; ++k) {
    keys[k] = sort_index(k) < pass.n ? pass.key(sort_index(k)) : 0;
    if (sort_index(k) < pass.n) atomicAdd(mine + pass.digit(keys[k]), 1u);
  }
  std::uint32_t all;
  std::uint32_t at = block_exclusive_sum<kSortThreads>(
      thread < pass.digits ? pass.digit_counts[thread] : 0, all, scratch);
  __syncthreads();
  if (thread < pass.digits) {
    at += pass.tile_counts[std::int64_t{thread} * gridDim.x + blockIdx.x];
    for (int w = 0; w < kSortWarps; ++w) {
      const std::uint32_t count = next[w * kMaxDigits + thread];
      next[w * kMaxDigits + thread] = at;
      at += count;
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kKeysPerLane; ++k) {
    const std::int64_t i = sort_index(k);
    const bool valid = i < pass.n;
    const std::uint32_t digit = valid ? pass.digit(keys[k]) : kMaxDigits;  // matches no other
    const unsigned same = __match_any_sync(kAllLanes, digit);
    const unsigned earlier = same & ((1u << lane) - 1);
    const std::uint32_t first = valid ? mine[digit] : 0;
    __syncwarp();
    if (valid && earlier == 0) mine[digit] = first + static_cast<std::uint32_t>(__popc(same));
    __syncwarp();
    if (!valid) continue;
    const std::uint32_t to = first + static_cast<std::uint32_t>(__popc(earlier));
    pass.keys_out[to] = keys[k];
    pass.order_out[to] = pass.ids != nullptr ? static_cast<std::uint32_t>(i) : pass.order[i];
  }
}

}  // namespace choir::cuda
