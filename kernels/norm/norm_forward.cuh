#pragma once
// LayerNorm and RMSNorm forward on the GPU; formulas in kernels/norm/norm.hpp. Floor: 2 element
// transfers (4 with the residual addition) and 8 bytes of statistics per row: 65536 x 768 in 16
// bits with the addition, 403 MB, is 94 us on an H200 at 4.3 TB/s. A row stays in registers between
// the two passes of the exact variance. Rows of up to 1024 columns have one warp, wider rows (or
// few rows) a block. A thread reads all its pieces before it uses the first, so that at least 48
// bytes per thread are in flight.
#include "kernels/norm/norm_row.cuh"

namespace choir::cuda {

template <class T>
struct NormForwardArguments {
  const T *residual, *delta;  ///< [rows, width]; delta may be nullptr
  const T *weight, *bias;     ///< [width]; bias may be nullptr
  T *sum, *out;               ///< [rows, width]; sum only with delta
  float *mean, *rstd;         ///< [rows]; mean is nullptr for rmsnorm
  std::int64_t rows;
  int width;
  float eps;
};

template <class Row>
__global__ void CHOIR_ALONE_ON_BLACKWELL(Row::kBlock)
    norm_forward_kernel(NormForwardArguments<typename Row::T> a) {
  using Wide = typename Row::Wide;
  constexpr int kThreads = Row::kThreads, kWide = Row::kWide, kSteps = Row::kSteps;
  CHOIR_SHARED_ARRAY(float, scratch, (2 * kRowScratch<kThreads, 1>));
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const std::int64_t row = std::int64_t{blockIdx.x} * Row::kGroups + threadIdx.x / kThreads;
  if (row >= a.rows)
    return;  // applies to a whole warp; no block has both barriers and missing
             // rows
  const std::int64_t at = row * a.width;

  typename Wide::Raw raw[kSteps] = {}, added[kSteps] = {}, weight[kSteps] = {};
  if constexpr (Row::kAlone) {
    let_next_begin();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int c = Row::column(thread, s);
      if (c < a.width) weight[s] = Wide::read(a.weight + c);
    }
    wait_for_earlier();
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int c = Row::column(thread, s);
    if (c < a.width) raw[s] = Wide::read(a.residual + at + c);
    if (a.delta != nullptr && c < a.width) added[s] = Wide::read(a.delta + at + c);
  }
  float x[kSteps][kWide], total[1] = {0}, square[1] = {0};
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {  // missing columns are 0
    const int c = Row::column(thread, s);
    Wide::unpack(raw[s], x[s]);
    if (a.delta != nullptr && c < a.width) {
      float y[kWide];
      Wide::unpack(added[s], y);
#pragma unroll
      for (int i = 0; i < kWide; ++i) x[s][i] += y[i];
      const typename Wide::Raw rounded = Wide::pack(x[s]);
      Wide::write(a.sum + at + c, rounded);
      Wide::unpack(rounded, x[s]);
    }
#pragma unroll
    for (int i = 0; i < kWide; ++i) total[0] += x[s][i];
  }
  const auto width = static_cast<float>(a.width);
  float mean = 0;
  if (a.mean != nullptr) {
    row_sums<kThreads>(total, scratch);
    mean = total[0] / width;
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s)
    if (Row::column(thread, s) < a.width) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) square[0] += (x[s][i] - mean) * (x[s][i] - mean);
    }
  row_sums<kThreads>(square, scratch + kRowScratch<kThreads, 1>);
  const float rstd = 1.0f / sqrtf(square[0] / width + a.eps);
  if (thread == 0) {
    if (a.mean != nullptr) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int c = Row::column(thread, s);
    if (c >= a.width) continue;
    float w[kWide], b[kWide] = {};
    Wide::unpack(Row::kAlone ? weight[s] : Wide::read(a.weight + c), w);
    if (a.bias != nullptr) Wide::load(a.bias + c, b);
#pragma unroll
    for (int i = 0; i < kWide; ++i) x[s][i] = (x[s][i] - mean) * rstd * w[i] + b[i];
    Wide::store(a.out + at + c, x[s]);
  }
}

/// Rows that do not fit into registers are read element by element, the second and third time from
/// the cache.
template <class T>
__global__ void __launch_bounds__(kLongRowThreads)
    norm_forward_long_kernel(NormForwardArguments<T> a) {
  CHOIR_SHARED_ARRAY(float, scratch, (2 * kRowScratch<kLongRowThreads, 1>));
  const std::int64_t row = blockIdx.x, at = row * a.width;
  const int thread = static_cast<int>(threadIdx.x);
  const T* x = a.residual + at;
  float total[1] = {0}, square[1] = {0};
  if (a.delta != nullptr) {
    for (int c = thread; c < a.width; c += kLongRowThreads)
      a.sum[at + c] = from_float<T>(to_float(x[c]) + to_float(a.delta[at + c]));
    x = a.sum + at;  // every thread reads back its own elements
  }
  const auto width = static_cast<float>(a.width);
  float mean = 0;
  if (a.mean != nullptr) {
    for (int c = thread; c < a.width; c += kLongRowThreads) total[0] += to_float(x[c]);
    row_sums<kLongRowThreads>(total, scratch);
    mean = total[0] / width;
  }
  for (int c = thread; c < a.width; c += kLongRowThreads) {
    const float d = to_float(x[c]) - mean;
    square[0] += d * d;
  }
  row_sums<kLongRowThreads>(square, scratch + kRowScratch<kLongRowThreads, 1>);
  const float rstd = 1.0f / sqrtf(square[0] / width + a.eps);
  if (thread == 0) {
    if (a.mean != nullptr) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
  for (int c = thread; c < a.width; c += kLongRowThreads)
    a.out[at + c] = from_float<T>((to_float(x[c]) - mean) * rstd * to_float(a.weight[c]) +
                                  (a.bias != nullptr ? to_float(a.bias[c]) : 0.0f));
}

}  // namespace choir::cuda
