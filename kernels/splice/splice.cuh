#pragma once
// Rows of audio among the rows of a prompt. A thread has one pack of 16 bytes, or one element, of a
// row; threads of rows without audio do nothing. Floor per element of audio: forward 3 transfers,
// backward 2; reading the index once per pack is served by L1.
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/blackwell.cuh"

namespace choir::cuda {

/// The rows of this rank in all audio.
struct AudioRows {
  std::int64_t first, rows;
  /// Returns -1 if the row is not on this rank.
  __device__ std::int64_t at(std::int32_t index) const {
    const std::int64_t a = -1 - std::int64_t{index} - first;
    return index < 0 && a >= 0 && a < rows ? a : -1;
  }
};

/// Fewer than 2^31 packs in total.
template <class T, bool kPacked>
__global__ void CHOIR_ALONE_ON_BLACKWELL(kElementwiseThreads)
    splice_kernel(std::uint32_t items, Divisor per_row, std::int64_t width, AudioRows here,
                  const std::int32_t* index, const T* audio, T* out) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  for (std::int64_t i = global_thread(); i < items; i += global_threads()) {
    const std::uint32_t row = per_row.quotient(static_cast<std::uint32_t>(i));
    const std::int64_t from = here.at(index[row]);
    if (from < 0) continue;
    const std::int64_t column =
        std::int64_t{per_row.remainder(static_cast<std::uint32_t>(i))} * kWide;
    float x[kWide], y[kWide];
    Wide::load(audio + from * width + column, x);
    Wide::load(out + i * kWide, y);
#pragma unroll
    for (int k = 0; k < kWide; ++k) y[k] += x[k];
    Wide::store(out + i * kWide, y);
  }
}

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    splice_gradient_kernel(std::uint32_t items, Divisor per_row, std::int64_t width, AudioRows here,
                           const std::int32_t* index, const T* d_out, T* d_audio) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  for (std::int64_t i = global_thread(); i < items; i += global_threads()) {
    const std::uint32_t row = per_row.quotient(static_cast<std::uint32_t>(i));
    const std::int64_t to = here.at(index[row]);
    if (to < 0) continue;
    const std::int64_t column =
        std::int64_t{per_row.remainder(static_cast<std::uint32_t>(i))} * kWide;
    Wide::write(d_audio + to * width + column, Wide::read(d_out + i * kWide));
  }
}

}  // namespace choir::cuda
