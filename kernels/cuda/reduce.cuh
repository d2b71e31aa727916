#pragma once
// Sums over flat memory and flat maps on the GPU; the formulas are in kernels/sums/sums.hpp.
// Orders of addition, both independent of the card:
// - sums_of_squares: a block sums a chunk, in double: 4 sums per thread over its elements
//   4 t + 1024 j, joined as a tree. The order differs from that of the CPU.
// - tree_sums: the tree of the CPU, bit for bit. Leaves beyond the end are -0, which changes no
// sum,
//   so any tree may be filled up to a power of two.
// Floor: every operand once.
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"

namespace choir::cuda {

/// out = a + b. Floor: 3 element transfers.
template <class T>
__global__ void add_kernel(std::int64_t n, bool packed, const T* a, const T* b, T* out) {
  map_elements(
      n, packed, out, [](float x, float y) { return x + y; }, a, b);
}

/// x *= factor. Floor: 2 element transfers.
__global__ void scale_kernel(std::int64_t n, bool packed, float* x, float factor) {
  map_elements(
      n, packed, x, [factor](float value) { return value * factor; }, x);
}

/// to = from, 8 elements a step (packed: both aligned to 16 bytes). Floor: both once.
template <class From, class To>
__global__ void cast_kernel(std::int64_t n, bool packed, const From* from, To* to) {
  constexpr int kWide = 8;
  using In = Access<From, true>;
  using Out = Access<To, true>;
  const std::int64_t steps = packed ? n / kWide : 0;
  for (std::int64_t s = global_thread(); s < steps; s += global_threads()) {
    float x[kWide];
#pragma unroll
    for (int i = 0; i < kWide; i += In::kWide) In::load(from + s * kWide + i, x + i);
#pragma unroll
    for (int i = 0; i < kWide; i += Out::kWide) Out::store(to + s * kWide + i, x + i);
  }
  for (std::int64_t i = steps * kWide + global_thread(); i < n; i += global_threads())
    to[i] = from_float<To>(to_float(from[i]));
}

/// Tensors that one kernel sums; they are passed as kernel arguments, whose limit is 4 KiB.
template <class A>
struct SummedTensors {
  static constexpr int kMost = 128;
  const A* x[kMost];
  double* sums[kMost];
  std::int64_t n[kMost];
  unsigned first_block[kMost];  ///< first block of each tensor, ascending
  int count = 0;
};

constexpr int kSquareThreads = 256;

/// sums[chunk] = sum of x^2. Grid: the chunks of kChunk elements of all tensors.
template <int kChunk>
__global__ void __launch_bounds__(kSquareThreads)
    sums_of_squares_kernel(const __grid_constant__ SummedTensors<float> tensors) {
  CHOIR_SHARED_ARRAY(double, scratch, kSquareThreads / kWarp);
  constexpr int kStep = 4 * kSquareThreads, kAhead = 8;
  static_assert(kChunk % (kStep * kAhead) == 0);
  int tensor = 0;
  for (int end = tensors.count; end - tensor > 1;) {
    const int middle = (tensor + end) / 2;
    (tensors.first_block[middle] <= blockIdx.x ? tensor : end) = middle;
  }
  const float* const x = tensors.x[tensor];
  const std::int64_t n = tensors.n[tensor];
  const bool packed = reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  const unsigned chunk = blockIdx.x - tensors.first_block[tensor];
  const std::int64_t first = std::int64_t{chunk} * kChunk + 4 * std::int64_t{threadIdx.x};
  double sums[4] = {};
#pragma unroll 1
  for (int j = 0; j < kChunk / kStep; j += kAhead) {
    float4 values[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const std::int64_t i = first + (j + k) * kStep;
      values[k] = make_float4(0, 0, 0, 0);
      if (packed && i + 4 <= n) {
        values[k] = *reinterpret_cast<const float4*>(x + i);
      } else {
        if (i < n) values[k].x = x[i];
        if (i + 1 < n) values[k].y = x[i + 1];
        if (i + 2 < n) values[k].z = x[i + 2];
        if (i + 3 < n) values[k].w = x[i + 3];
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const double v[4] = {values[k].x, values[k].y, values[k].z, values[k].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] += v[i] * v[i];
    }
  }
  const double sum =
      block_reduce<Sum, kSquareThreads>((sums[0] + sums[2]) + (sums[1] + sums[3]), scratch);
  if (threadIdx.x == 0) tensors.sums[tensor][chunk] = sum;
}

constexpr int kTreeThreads = 512;
constexpr int kTreeLeaves = 256;              ///< leaves of a subtree that a warp sums
constexpr int kTreeParts = 2 * kTreeThreads;  ///< such subtrees at a time
constexpr std::int64_t kTreeRound = std::int64_t{kTreeParts} * kTreeLeaves;

/// The tree over the lanes, neighbours first; lane 0 gets the result.
__device__ inline double tree_of_lanes(double value) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2)
    value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

/// sums[0] = the tree over x, with a block per tensor. Used for partial sums and the losses of a
/// batch.
template <class A>
__global__ void __launch_bounds__(kTreeThreads)
    tree_sums_kernel(const __grid_constant__ SummedTensors<A> tensors) {
  const A* const x = tensors.x[blockIdx.x];
  const std::int64_t n = tensors.n[blockIdx.x];
  CHOIR_SHARED_ARRAY(double, parts, kTreeParts);
  CHOIR_SHARED_ARRAY(double, warps, kTreeThreads / kWarp);
  constexpr int kPerLane = kTreeLeaves / kWarp;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  // Pending subtrees of earlier rounds, like the carries of a binary counter. Used by thread 0.
  CHOIR_SHARED_ARRAY(double, pending, 64);
  int depth = 0;
  std::uint64_t rounds = 0;
  for (std::int64_t first = 0; first < n; first += kTreeRound, ++rounds) {
    for (int part = thread / kWarp; part < kTreeParts; part += kTreeThreads / kWarp) {
      const std::int64_t begin = first + std::int64_t{part} * kTreeLeaves;
      if (begin >= n) {  // true for most of the tree if there are few elements
        if (lane == 0) parts[part] = -0.0;
        continue;
      }
      const std::int64_t at = begin + lane * kPerLane;
      double leaves[kPerLane];
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        leaves[i] = at + i < n ? static_cast<double>(x[at + i]) : -0.0;
#pragma unroll
      for (int width = 1; width < kPerLane; width *= 2)
#pragma unroll
        for (int i = 0; i < kPerLane; i += 2 * width) leaves[i] += leaves[i + width];
      const double sum = tree_of_lanes(leaves[0]);
      if (lane == 0) parts[part] = sum;
    }
    __syncthreads();
    const double sum = tree_of_lanes(parts[2 * thread] + parts[2 * thread + 1]);
    if (lane == 0) warps[thread / kWarp] = sum;
    __syncthreads();
    if (thread < kWarp) {
      double round = tree_of_lanes(lane < kTreeThreads / kWarp ? warps[lane] : -0.0);
      if (thread == 0) {
        for (std::uint64_t r = rounds; r & 1u; r >>= 1) round = pending[--depth] + round;
        pending[depth++] = round;
      }
    }
    // `warps` is only written again after the next round's barrier; `parts` was read before this
    // one.
  }
  if (thread != 0) return;
  double sum = depth > 0 ? pending[--depth] : 0.0;
  while (depth > 0) sum = pending[--depth] + sum;
  *tensors.sums[blockIdx.x] = sum;
}

}  // namespace choir::cuda
