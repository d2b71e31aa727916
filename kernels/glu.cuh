#pragma once
// The gated linear unit on the GPU; formulas in kernels/glu.hpp. Floor per output element: forward
// 3 element transfers, backward 5. A thread takes a pack of columns of a row at a time; rows that
// do not count are written, not read.
#include "kernels/activation.cuh"
#include "kernels/frames.hpp"

namespace choir::cuda {

/// Packs of all rows, and how a pack finds its row: quotients by packs of a row, then by tokens.
struct FramePacks {
  std::uint32_t packs;
  Divisor per_row;
  const std::int32_t* lengths;
  std::int64_t first_row, tokens;

  __device__ bool counts(std::uint32_t row) const {
    if (lengths == nullptr) return true;
    const std::int64_t r = first_row + row;
    return r % tokens < frames_of(lengths, r / tokens, tokens);
  }
};

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    glu_forward_kernel(FramePacks a, const T* x, T* y) {
  using Wide = Access<T, kPacked>;
  using Math = MathFor<T>;
  constexpr int kWide = Wide::kWide;
  const std::int64_t width = std::int64_t{a.per_row.divisor} * kWide;
  for (std::int64_t p = global_thread(); p < a.packs; p += global_threads()) {
    const std::uint32_t row = a.per_row.quotient(static_cast<std::uint32_t>(p));
    const T* value = x + (p + std::int64_t{row} * a.per_row.divisor) * kWide;
    float out[kWide] = {};
    if (a.counts(row)) {
      const typename Wide::Raw raw_value = Wide::read(value), raw_gate = Wide::read(value + width);
      float v[kWide], g[kWide];
      Wide::unpack(raw_value, v), Wide::unpack(raw_gate, g);
#pragma unroll
      for (int i = 0; i < kWide; ++i) out[i] = v[i] * logistic<Math>(g[i]).below;
    }
    Wide::store(y + p * kWide, out);
  }
}

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    glu_backward_kernel(FramePacks a, const T* x, const T* d_y, T* d_x) {
  using Wide = Access<T, kPacked>;
  using Math = MathFor<T>;
  constexpr int kWide = Wide::kWide;
  const std::int64_t width = std::int64_t{a.per_row.divisor} * kWide;
  for (std::int64_t p = global_thread(); p < a.packs; p += global_threads()) {
    const std::uint32_t row = a.per_row.quotient(static_cast<std::uint32_t>(p));
    const std::int64_t value = (p + std::int64_t{row} * a.per_row.divisor) * kWide;
    float v[kWide] = {}, g[kWide] = {};
    if (a.counts(row)) {
      const typename Wide::Raw raw_value = Wide::read(x + value),
                               raw_gate = Wide::read(x + value + width),
                               raw_d = Wide::read(d_y + p * kWide);
      float d[kWide];
      Wide::unpack(raw_value, v), Wide::unpack(raw_gate, g), Wide::unpack(raw_d, d);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        const BelowAndDensity s = logistic<Math>(g[i]);
        g[i] = d[i] * v[i] * s.density;
        v[i] = d[i] * s.below;
      }
    }
    Wide::store(d_x + value, v), Wide::store(d_x + value + width, g);
  }
}

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads) mask_frames_kernel(FramePacks a, T* x) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const float zeros[kWide] = {};
  for (std::int64_t p = global_thread(); p < a.packs; p += global_threads())
    if (!a.counts(a.per_row.quotient(static_cast<std::uint32_t>(p))))
      Wide::store(x + p * kWide, zeros);
}

}  // namespace choir::cuda
