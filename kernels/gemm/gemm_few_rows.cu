// Y = X W^T of few rows X on the GPU, as in text generation. Floor: W once at the rate of the
// memory; 1024 x 5632 in bf16, 11.5 MB, is 3.9 us at 3 TB/s, and an empty kernel takes 2 us. A
// warp, or up to four for long rows, owns a column of Y: its lanes read a row of W in packs, four
// of them in flight before X arrives, and rows of X from cache, which all columns share. A library
// with tiles uses a block for 64 columns, which leaves most of the GPU idle.

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/gemm/gemm.hpp"

namespace choir::cuda {

constexpr int kFewRowsThreads = 128, kFewRowsWarps = kFewRowsThreads / kWarp;
/// Largest number of rows for which this kernel is faster than the library: with 8 a step of a GPT
/// of 85M parameters took an H100 0.68 ms here, and one with 16 by the library 0.59.
constexpr int kFewRowsMost = 4;
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

namespace {

template <class T>
bool multiply(const Stream& stream, const GemmArgs& args) {
  const auto* x = static_cast<const T*>(args.a);
  const auto* w = static_cast<const T*>(args.b);
  if (!can_pack<T>(args.k, x, w) || args.k > kMostItems / 2) return false;
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
  if (!plain || args.m > kFewRowsMost || args.transpose_a || !args.transpose_b) return false;
  bool done = false;
  with_element(args.in, [&](auto t) { done = multiply<decltype(t)>(stream, args); });
  return done;
}

}  // namespace choir::cuda
