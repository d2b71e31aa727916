#pragma once
// Rows of a norm on the GPU: their distribution over threads, sums over a row, and the choice of a
// distribution for a width.

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/norm/norm.hpp"

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
  static constexpr bool kAlone = false;    ///< see LoneRows
  static constexpr bool kDropped = false;  ///< see DroppedRows

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

/// Rows with the dropout of the branch that ends in this norm.
template <class Row>
struct DroppedRows : Row {
  static constexpr bool kDropped = true;
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

constexpr std::int64_t kNarrowColumns = 256;  ///< columns of a row that a warp covers with one pack
                                              ///< per lane

/// Calls f(RowShare{}) for rows of `width`; returns false if no share holds such rows in registers.
/// Ragged rows are supported only up to the width that a warp holds, because wider ones are rare.
template <class T, class F>
bool with_row_share(std::int64_t width, bool packed, const F& f) {
  using Ragged = RowShare<T, 32, 32, false>;
  const int threads = norm_threads(width);
  if (!packed && width <= Ragged::kMostColumns)
    f(Ragged{});
  else if (!packed || threads == 0)
    return false;
  else if (width <= kNarrowColumns)
    f(RowShare<T, 32, kNarrowColumns / 32, true>{});
  else if (threads == 32)
    f(RowShare<T, 32, 32, true>{});
  else if (threads == 128)
    f(RowShare<T, 128, 32, true>{});
  else if (threads == 256)
    f(RowShare<T, 256, 32, true>{});
  else
    f(RowShare<T, 512, 32, true>{});
  return true;
}

/// True for rows that the kernel of lone rows takes.
template <class T>
bool are_alone(std::int64_t rows, std::int64_t width, bool packed) {
  using Lone = LoneRows<T>;
  return packed && rows <= Lone::kMostRows && width > kNarrowColumns && width <= Lone::kMostColumns;
}

/// Calls f(DroppedRows{}) for rows that the kernels with dropout take.
template <class T, class F>
bool with_dropped_share(std::int64_t width, bool packed, const F& f) {
  if (!packed || width > RowShare<T, 128, 32, true>::kMostColumns) return false;
  if (width <= kNarrowColumns)
    f(DroppedRows<RowShare<T, 32, kNarrowColumns / 32, true>>{});
  else if (width <= kMostInHalfRows)
    f(DroppedRows<RowShare<T, 32, kMostInHalfRows / 32, true>>{});
  else if (norm_threads(width) == 32)
    f(DroppedRows<RowShare<T, 32, 32, true>>{});
  else
    f(DroppedRows<RowShare<T, 128, 32, true>>{});
  return true;
}

}  // namespace choir::cuda
