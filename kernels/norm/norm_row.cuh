#pragma once
// Helpers shared by the norm kernels: the distribution of a row over threads, and sums over a row.
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/blackwell.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/early_launch.cuh"

namespace choir::cuda {

/// Threads per row for rows that are too wide for registers.
constexpr int kLongRowThreads = 512;

/// A row shared by kThreads threads, each with kValues columns in kSteps pieces. Pieces are packs
/// if rows are whole packs, otherwise single elements. Neighbouring threads hold neighbouring
/// pieces.
template <class Element, int kThreads_, int kValues_, bool kPacked_>
struct RowShare {
  using T = Element;
  using Wide = Access<T, kPacked_>;
  static constexpr bool kPacked = kPacked_;
  static constexpr int kThreads = kThreads_, kValues = kValues_;
  static constexpr int kWide = Wide::kWide, kSteps = kValues / kWide;
  static constexpr int kBlock = kThreads < 128 ? 128 : kThreads;  ///< threads per block
  static constexpr int kGroups = kBlock / kThreads;               ///< rows at a time in a block
  static constexpr std::int64_t kMostColumns = kThreads * kValues;
  static constexpr bool kAlone = false;  ///< see LoneRows

  /// First column of a piece.
  __device__ static int column(int thread, int step) { return (step * kThreads + thread) * kWide; }
};

/// For rows that have the GPU to themselves, where only the latency of one row matters: many
/// threads with few columns each and an early start; the weight is read before the row instead of
/// after its sums.
template <class Element>
struct LoneRows : RowShare<Element, 256, 16, true> {
  static constexpr bool kAlone = true;
  static constexpr std::int64_t kMostRows = 64;
};

/// Number of floats in shared memory that row_sums() needs for kCount sums.
template <int kThreads, int kCount>
constexpr int kRowScratch = kThreads > kWarp ? kCount* kThreads / kWarp : 1;

/// Sums every value over the kThreads threads of a row; all of them get the results. A row shared
/// by more than one warp has a whole block, and two consecutive calls must use different `scratch`.
template <int kThreads, int kCount>
__device__ inline void row_sums(float (&value)[kCount], float* scratch) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) value[k] = warp_reduce<Sum>(value[k]);
  if constexpr (kThreads > kWarp) {
    constexpr int kWarps = kThreads / kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (lane == 0) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) scratch[k * kWarps + warp] = value[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      value[k] = warp_reduce<Sum>(lane < kWarps ? scratch[k * kWarps + lane] : 0.0f);
  }
}

}  // namespace choir::cuda
