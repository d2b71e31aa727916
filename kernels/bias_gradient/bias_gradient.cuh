#pragma once
// Column sums of d_y [N, C]. A few rows are summed in one kernel with a block for each 32-byte
// memory sector of a row: the input was mostly written just before and is still in the L2 cache.
// More rows, or unaligned rows, are summed in two stages, the first of which is here: a block adds
// a tile of columns over its rows and leaves one partial sum per column. Floor: d_y once, 2 bytes
// per 16-bit element (GPT-2, 65536 x 768: 23 us on an H200 at 4.3 TB/s); partial sums add 8 bytes
// per column and block, 2 % there. Each thread keeps four loads of 16 bytes in flight.
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"

namespace choir::cuda {

/// Adds the columns at `from` of rows first, first + kStep ... below last, with kUnroll loads at a
/// time.
template <class T, bool kPacked, int kStep, int kUnroll, int kWide>
__device__ inline void add_rows(const T* from, std::int64_t first, std::int64_t last,
                                std::int64_t width, float (&sum)[kWide]) {
  using Wide = Access<T, kPacked>;
  for (std::int64_t r = first; r < last; r += kUnroll * kStep) {
    typename Wide::Raw raw[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (r + u * kStep < last) raw[u] = Wide::read(from + (r + u * kStep) * width);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {  // missing rows are 0
      float x[kWide];
      Wide::unpack(raw[u], x);
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum[i] += x[i];
    }
  }
}

/// Maximum number of rows for the single kernel: a block then reads half a megabyte.
constexpr std::int64_t kFewRows = 16384;

constexpr int kSectorWarps = 32;  ///< maximum
constexpr int kSectorLanes = 2;   ///< lanes per row

/// Threads of a block for `rows` rows: one pair of lanes per row, up to the limit of a block.
inline unsigned sector_threads(std::int64_t rows) {
  return static_cast<unsigned>(
      kWarp * std::min<std::int64_t>(kSectorWarps, blocks_for(rows, kWarp / kSectorLanes)));
}

template <class T>
constexpr int kSectorTile = kSectorLanes* kPack<T>;

/// Two lanes read a row of the block's columns, and the pairs of lanes take rows in turn. The sums
/// of a warp are added over its lanes, then those of the warps in order.
template <class T>
__global__ void __launch_bounds__(kSectorWarps* kWarp)
    sector_sums_kernel(std::int64_t rows, std::int64_t width, const T* d_y, float* d_bias) {
  using Wide = Access<T, true>;
  constexpr int kWide = Wide::kWide, kTile = kSectorTile<T>;
  // With fewer threads every pair of lanes has at most one row.
  constexpr int kStep = kSectorWarps * kWarp / kSectorLanes;
  CHOIR_SHARED_ARRAY(float, sums, kSectorWarps* kTile);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const std::int64_t tile = std::int64_t{blockIdx.x} * kTile;
  const std::int64_t c = tile + lane % kSectorLanes * kWide;
  float sum[kWide] = {};
  if (c < width) add_rows<T, true, kStep, 8>(d_y + c, thread / kSectorLanes, rows, width, sum);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
#pragma unroll
    for (int offset = kWarp / 2; offset >= kSectorLanes; offset /= 2)
      sum[i] += __shfl_xor_sync(kAllLanes, sum[i], offset);
    if (lane < kSectorLanes) sums[warp * kTile + lane * kWide + i] = sum[i];
  }
  __syncthreads();
  if (thread >= kTile || tile + thread >= width) return;
  float total = sums[thread];
#pragma unroll 8
  for (int w = 1; w < static_cast<int>(blockDim.x) / kWarp; ++w) total += sums[w * kTile + thread];
  d_bias[tile + thread] += total;
}

constexpr int kColumnWarps = 8, kColumnThreads = kColumnWarps * kWarp;

/// Columns per block.
template <class T, bool kPacked>
constexpr int kColumnTile = kWarp* Access<T, kPacked>::kWide;

/// Warp w adds the rows first + w, first + w + kColumnWarps ...; the sums of the warps are added in
/// order.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kColumnThreads)
    bias_gradient_kernel(std::int64_t rows, std::int64_t rows_per_block, std::int64_t width,
                         const T* d_y, std::int64_t stride, float* partials) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide, kTile = kColumnTile<T, kPacked>;
  CHOIR_SHARED_ARRAY(float, sums, kColumnWarps* kTile);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t tile = std::int64_t{blockIdx.x} * kTile, c = tile + lane * kWide;
  const std::int64_t first = blockIdx.y * rows_per_block;
  const std::int64_t last = min(first + rows_per_block, rows);
  float sum[kWide] = {};
  if (c < width) add_rows<T, kPacked, kColumnWarps, 4>(d_y + c, first + warp, last, width, sum);
    // Stored value by value, so that neighbouring lanes use neighbouring banks.
#pragma unroll
  for (int i = 0; i < kWide; ++i) sums[(warp * kWide + i) * kWarp + lane] = sum[i];
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < kTile; t += kColumnThreads) {
    const int column = t % kWarp * kWide + t / kWarp;  // value t / 32 of lane t % 32
    float total = sums[t];
#pragma unroll
    for (int w = 1; w < kColumnWarps; ++w) total += sums[w * kTile + t];
    if (tile + column < width) partials[blockIdx.y * stride + tile + column] = total;
  }
}

}  // namespace choir::cuda
