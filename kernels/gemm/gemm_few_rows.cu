// Y = X W^T of few rows X on the GPU, as in text generation. Floor: W once at the rate of the
// memory; 1024 x 5632 in bf16, 11.5 MB, is 3.9 us at 3 TB/s, and an empty kernel takes 2 us. A
// warp, or up to four for long rows, owns a column of Y: its lanes read a row of W in packs, four
// of them in flight before X arrives, and rows of X from cache, which all columns share. A library
// with tiles uses a block for 64 columns, which leaves most of the GPU idle.
//
// With 5 to 8 rows of 16-bit elements the arithmetic of that kernel would take longer than reading
// W. They fill the n8 side of mma.sync.m16n8k16: a warp has 16 columns of Y, and the eight warps of
// a block share their k. The order of k inside a sum is free if W and X have the same, so a lane
// reads packs of 16 bytes of both, and their words are the fragments of two products as they are.
// Per pack of X two packs of W are read, in place of one for each row.

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/gemm/gemm.hpp"

namespace choir::cuda {

constexpr int kFewRowsThreads = 128, kFewRowsWarps = kFewRowsThreads / kWarp;
/// Largest number of rows for which few_rows_kernel() is faster than the library: with 8 a step of
/// a GPT of 85M parameters took an H100 0.68 ms here, and one with 16 by the library 0.59.
constexpr int kFewRowsMost = 4;
/// Rows, columns and warps of eight_rows_kernel().
constexpr int kEightRows = 8, kEightColumns = 16, kEightWarps = 8;
constexpr int kFewRowsAhead = 4;  ///< packs of W that a lane has in flight
/// Warps that together have enough loads in flight; beyond it a column has no second warp.
constexpr std::int64_t kFewRowsEnough = 4096;

template <class T>
struct FewRowsArguments {
  const T *x, *w, *bias;  ///< [rows, k], [n, k], [n] or nullptr
  T* y;                   ///< [rows, n], or nullptr
  float* y_f32;           ///< the result if y is nullptr
  int rows;
  std::int64_t n;
  int k;
  int share;  ///< warps of a column: 1, 2 or 4
  bool accumulate;
};

template <class T>
__device__ inline void put_element(const FewRowsArguments<T>& a, std::int64_t at, float sum) {
  if (a.y != nullptr)
    a.y[at] = from_float<T>(a.accumulate ? sum + to_float(a.y[at]) : sum);
  else
    a.y_f32[at] = a.accumulate ? sum + a.y_f32[at] : sum;
}

/// The sums of a row are the same whatever the number of rows.
template <class T, int kRows>
__global__ void __launch_bounds__(kFewRowsThreads) few_rows_kernel(FewRowsArguments<T> a) {
  using Wide = Access<T, true>;
  constexpr int kWide = Wide::kWide;
  CHOIR_SHARED_ARRAY(float, scratch, kFewRowsWarps* kRows);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, part = warp % a.share;
  const std::int64_t column = (std::int64_t{blockIdx.x} * kFewRowsWarps + warp) / a.share;
  float sums[kRows] = {};
  const T* const w = a.w + column * a.k;
  const int step = a.share * kWarp * kWide, end = column < a.n ? a.k : 0;
  int first = (part * kWarp + lane) * kWide;
  typename Wide::Raw of_w[kFewRowsAhead];  // zeros beyond the end
  const auto fetch = [&](int from) {
#pragma unroll
    for (int u = 0; u < kFewRowsAhead; ++u) {
      of_w[u] = {};
      if (from + u * step < end)
        of_w[u] = __ldcs(reinterpret_cast<const uint4*>(w + from + u * step));
    }
  };
  let_next_begin();
  fetch(first);  // no earlier kernel writes to the weight
  wait_for_earlier();
  for (; first < end; first += kFewRowsAhead * step, fetch(first)) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (kRows > 1 && r >= a.rows) break;
      typename Wide::Raw of_x[kFewRowsAhead] = {};
#pragma unroll
      for (int u = 0; u < kFewRowsAhead; ++u)
        if (first + u * step < end)
          of_x[u] = Wide::read(a.x + std::int64_t{r} * a.k + first + u * step);
#pragma unroll
      for (int u = 0; u < kFewRowsAhead; ++u) {
        float x[kWide], y[kWide];
        Wide::unpack(of_x[u], x), Wide::unpack(of_w[u], y);
#pragma unroll
        for (int i = 0; i < kWide; ++i) sums[r] += x[i] * y[i];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[r] = warp_reduce<Sum>(sums[r]);
  if (a.share > 1) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (lane == r) scratch[warp * kRows + r] = sums[r];
    __syncthreads();
    for (int other = 1; other < a.share && part == 0; ++other)
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] += scratch[(warp + other) * kRows + r];
  }
  if (part != 0 || column >= a.n) return;
  const float bias = a.bias != nullptr ? to_float(a.bias[column]) : 0.0f;
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    if (lane == r && r < a.rows) put_element(a, r * a.n + column, sums[r] + bias);
}

/// Up to eight rows of 16-bit elements. Lane 4 g + t holds packs of rows g of X and g and g + 8 of
/// the columns' W, at k = 8 t of every 32. The sums of the warps are added in order.
template <class T>
__global__ void __launch_bounds__(kEightWarps* kWarp) eight_rows_kernel(FewRowsArguments<T> a) {
  constexpr int kWide = kPack<T>, kStep = kEightWarps * 4 * kWide;
  CHOIR_SHARED_ARRAY(float, scratch, kEightWarps* kEightRows* kEightColumns);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t low = std::int64_t{blockIdx.x} * kEightColumns + g, high = low + 8;
  const T *const w_low = a.w + low * a.k, *const w_high = a.w + high * a.k;
  const T* const x = a.x + std::int64_t{g} * a.k;
  float sums[4] = {};
  uint4 of_low[kFewRowsAhead], of_high[kFewRowsAhead];  // zeros beyond the end
  const auto fetch = [&](int from) {
#pragma unroll
    for (int u = 0; u < kFewRowsAhead; ++u) {
      const int at = from + u * kStep;
      of_low[u] = of_high[u] = {};
      if (at >= a.k) continue;
      if (low < a.n) of_low[u] = __ldcs(reinterpret_cast<const uint4*>(w_low + at));
      if (high < a.n) of_high[u] = __ldcs(reinterpret_cast<const uint4*>(w_high + at));
    }
  };
  int first = (warp * 4 + t) * kWide;
  let_next_begin();
  fetch(first);  // no earlier kernel writes to the weight
  wait_for_earlier();
  // All lanes of a warp do the same number of products.
  for (int from = warp * 4 * kWide; from < a.k; from += kFewRowsAhead * kStep) {
    uint4 of_x[kFewRowsAhead] = {};
#pragma unroll
    for (int u = 0; u < kFewRowsAhead; ++u)
      if (g < a.rows && first + u * kStep < a.k)
        of_x[u] = *reinterpret_cast<const uint4*>(x + first + u * kStep);
#pragma unroll
    for (int u = 0; u < kFewRowsAhead; ++u) {
      const std::uint32_t one[4] = {of_low[u].x, of_high[u].x, of_low[u].y, of_high[u].y},
                          two[4] = {of_low[u].z, of_high[u].z, of_low[u].w, of_high[u].w},
                          x_one[2] = {of_x[u].x, of_x[u].y}, x_two[2] = {of_x[u].z, of_x[u].w};
      ptx::mma_16x8x16<T>(sums, one, x_one);
      ptx::mma_16x8x16<T>(sums, two, x_two);
    }
    first += kFewRowsAhead * kStep;
    fetch(first);
  }
  // Element i is that of column g + 8 (i / 2) and row 2 t + i % 2.
#pragma unroll
  for (int i = 0; i < 4; ++i)
    scratch[(warp * kEightRows + 2 * t + i % 2) * kEightColumns + g + i / 2 * 8] = sums[i];
  __syncthreads();
  const int at = static_cast<int>(threadIdx.x), row = at / kEightColumns;
  const std::int64_t column = std::int64_t{blockIdx.x} * kEightColumns + at % kEightColumns;
  if (row >= a.rows || column >= a.n) return;
  float sum = scratch[at];
#pragma unroll
  for (int other = 1; other < kEightWarps; ++other)
    sum += scratch[other * kEightRows * kEightColumns + at];
  put_element(a, row * a.n + column, sum + (a.bias != nullptr ? to_float(a.bias[column]) : 0.0f));
}

namespace {

template <class T>
bool multiply(const Stream& stream, const GemmArgs& args) {
  const auto* x = static_cast<const T*>(args.a);
  const auto* w = static_cast<const T*>(args.b);
  if (!can_pack<T>(args.k, x, w) || args.k > kMostItems / 2) return false;
  if (args.m > (sizeof(T) == 2 ? kEightRows : kFewRowsMost)) return false;
  const bool wide = args.out == DType::f32 && sizeof(T) == 2;
  FewRowsArguments<T> a{x,
                        w,
                        static_cast<const T*>(args.bias),
                        wide ? nullptr : static_cast<T*>(args.c),
                        static_cast<float*>(args.c),
                        static_cast<int>(args.m),
                        args.n,
                        static_cast<int>(args.k),
                        1,
                        args.accumulate};
  if constexpr (sizeof(T) == 2) {
    if (args.m > kFewRowsMost) {
      launch_early(stream, "eight_rows", eight_rows_kernel<T>,
                   {static_cast<unsigned>(blocks_for(args.n, kEightColumns)), kEightWarps * kWarp},
                   a);
      return true;
    }
  }
  while (a.share < kFewRowsWarps && a.share * args.n < kFewRowsEnough &&
         args.k > kFewRowsAhead * a.share * kWarp * kPack<T>)
    a.share *= 2;
  const auto run = [&](auto kernel) {
    launch_early(
        stream, "few_rows", kernel,
        {static_cast<unsigned>(blocks_for(args.n * a.share, kFewRowsWarps)), kFewRowsThreads}, a);
  };
  if (args.m == 1)
    run(few_rows_kernel<T, 1>);
  else
    run(few_rows_kernel<T, kFewRowsMost>);
  return true;
}

}  // namespace

bool gemm_few_rows(const Stream& stream, const GemmArgs& args) {
  const bool plain = args.batch == 1 && args.epilogue == ops::GemmEpilogue::none;
  if (!plain || args.m > kEightRows || args.transpose_a || !args.transpose_b) return false;
  bool done = false;
  with_element(args.in, [&](auto t) { done = multiply<decltype(t)>(stream, args); });
  return done;
}

}  // namespace choir::cuda
