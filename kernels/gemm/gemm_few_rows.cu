// Y = X W^T of few rows X on the GPU, as when a model generates. Floor: W once at the rate of the
// memory; 1024 x 5632 in bf16, 11.5 MB, is 3.9 us at 3 TB/s, and a kernel that does nothing takes
// two. A warp, or up to four for long rows, has a column of Y: its lanes read a row of W in packs,
// four of them under way before X is there, and rows of X from cache, which all columns share. A
// library of tiles has a block for 64 columns, and leaves most of the GPU without any.
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/gemm/gemm.hpp"

namespace choir::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
/// Rows of X that one multiplies sooner than the library does: with 8 a step of a GPT of 85M
/// parameters took an H100 0.68 ms here, and one with 16 by the library 0.59.
constexpr int kMostRows = 4;
constexpr int kAhead = 4;  ///< packs of W that a lane has under way
/// Warps that have enough under way together: a column has no second one beyond.
constexpr std::int64_t kEnoughWarps = 4096;

template <class T>
struct FewRows {
  const T *x, *w, *bias;  ///< [rows, k], [n, k], [n] or nullptr
  T* y;                   ///< [rows, n], or nullptr and
  float* y_f32;           ///< this
  int rows;
  std::int64_t n;
  int k;
  int share;  ///< warps of a column: 1, 2 or 4
  bool accumulate;
};

template <class T>
__device__ inline void put(const FewRows<T>& a, std::int64_t at, float sum) {
  if (a.y != nullptr)
    a.y[at] = from_float<T>(a.accumulate ? sum + to_float(a.y[at]) : sum);
  else
    a.y_f32[at] = a.accumulate ? sum + a.y_f32[at] : sum;
}

/// Sums of a row are the same whatever the number of rows.
template <class T, int kRows>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(FewRows<T> a) {
  using Wide = Access<T, true>;
  constexpr int kWide = Wide::kWide;
  CHOIR_SHARED_ARRAY(float, scratch, kWarps* kRows);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, part = warp % a.share;
  const std::int64_t column = (std::int64_t{blockIdx.x} * kWarps + warp) / a.share;
  float sums[kRows] = {};
  const T* const w = a.w + column * a.k;
  const int step = a.share * kWarp * kWide, end = column < a.n ? a.k : 0;
  int first = (part * kWarp + lane) * kWide;
  typename Wide::Raw of_w[kAhead];  // zeros beyond the end
  const auto fetch = [&](int from) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      of_w[u] = {};
      if (from + u * step < end)
        of_w[u] = __ldcs(reinterpret_cast<const uint4*>(w + from + u * step));
    }
  };
  let_next_begin();
  fetch(first);  // nobody before has written to the weight
  wait_for_earlier();
  for (; first < end; first += kAhead * step, fetch(first)) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (kRows > 1 && r >= a.rows) break;
      typename Wide::Raw of_x[kAhead] = {};
#pragma unroll
      for (int u = 0; u < kAhead; ++u)
        if (first + u * step < end)
          of_x[u] = Wide::read(a.x + std::int64_t{r} * a.k + first + u * step);
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
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
    if (lane == r && r < a.rows) put(a, r * a.n + column, sums[r] + bias);
}

template <class T>
bool multiply(const Stream& stream, const GemmArgs& args) {
  const auto* x = static_cast<const T*>(args.a);
  const auto* w = static_cast<const T*>(args.b);
  if (!can_pack<T>(args.k, x, w) || args.k > kMostItems / 2) return false;
  const bool wide = args.out == DType::f32 && sizeof(T) == 2;
  FewRows<T> a{x,
               w,
               static_cast<const T*>(args.bias),
               wide ? nullptr : static_cast<T*>(args.c),
               static_cast<float*>(args.c),
               static_cast<int>(args.m),
               args.n,
               static_cast<int>(args.k),
               1,
               args.accumulate};
  while (a.share < kWarps && a.share * args.n < kEnoughWarps &&
         args.k > kAhead * a.share * kWarp * kPack<T>)
    a.share *= 2;
  const auto run = [&](auto kernel) {
    launch_early(stream, "few_rows", kernel,
                 {static_cast<unsigned>(blocks_for(args.n * a.share, kWarps)), kThreads}, a);
  };
  if (args.m == 1)
    run(few_rows_kernel<T, 1>);
  else
    run(few_rows_kernel<T, kMostRows>);
  return true;
}

}  // namespace

bool gemm_few_rows(const Stream& stream, const GemmArgs& args) {
  const bool plain = args.batch == 1 && args.epilogue == ops::GemmEpilogue::none;
  if (!plain || args.m > kMostRows || args.transpose_a || !args.transpose_b) return false;
  bool done = false;
  with_element(args.in, [&](auto t) { done = multiply<decltype(t)>(stream, args); });
  return done;
}

}  // namespace choir::cuda
