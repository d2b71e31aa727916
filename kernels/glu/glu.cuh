#pragma once
// The gated linear unit on the GPU; formulas in kernels/glu/glu.hpp. Floor per output element:
// forward 3 element transfers, backward 5. A thread processes a pack of columns of a row at a time;
// masked rows are written, not read.
#include "kernels/activation/activation.cuh"
#include "kernels/cpu/frames.hpp"

namespace choir::cuda {

/// The packs of the rows of a launch. A pack finds its row, sample and frame by quotients: by the
/// packs of a row, then by tokens.
struct FramePacks {
  std::uint32_t packs;
  Divisor per_row, tokens;
  const std::int32_t* lengths;  ///< from the first row's sample on
  std::uint32_t first_frame;    ///< frame of the first row

  __device__ bool counts(std::uint32_t row) const {
    if (lengths == nullptr) return true;
    const std::uint32_t r = first_frame + row;
    return tokens.remainder(r) < frames_of(lengths, tokens.quotient(r), tokens.divisor);
  }
};

// 32 bits hold the packs of a launch plus one step.
__device__ inline std::uint32_t first_pack() {
  return static_cast<std::uint32_t>(global_thread());
}
__device__ inline std::uint32_t pack_step() {
  return gridDim.x * blockDim.x;
}

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    glu_forward_kernel(FramePacks a, const T* x, T* y) {
  using Wide = Access<T, kPacked>;
  using Math = MathFor<T>;
  constexpr int kWide = Wide::kWide;
  const std::int64_t width = std::int64_t{a.per_row.divisor} * kWide;
  for (std::uint32_t p = first_pack(); p < a.packs; p += pack_step()) {
    const std::uint32_t row = a.per_row.quotient(p);
    const T* value = x + (std::int64_t{p} + std::int64_t{row} * a.per_row.divisor) * kWide;
    float out[kWide] = {};
    if (a.counts(row)) {
      const typename Wide::Raw raw_value = Wide::read(value), raw_gate = Wide::read(value + width);
      float v[kWide], g[kWide];
      Wide::unpack(raw_value, v), Wide::unpack(raw_gate, g);
#pragma unroll
      for (int i = 0; i < kWide; ++i) out[i] = v[i] * logistic<Math>(g[i]).below;
    }
    Wide::store(y + std::int64_t{p} * kWide, out);
  }
}

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    glu_backward_kernel(FramePacks a, const T* x, const T* d_y, T* d_x) {
  using Wide = Access<T, kPacked>;
  using Math = MathFor<T>;
  constexpr int kWide = Wide::kWide;
  const std::int64_t width = std::int64_t{a.per_row.divisor} * kWide;
  for (std::uint32_t p = first_pack(); p < a.packs; p += pack_step()) {
    const std::uint32_t row = a.per_row.quotient(p);
    const std::int64_t value = (std::int64_t{p} + std::int64_t{row} * a.per_row.divisor) * kWide;
    float v[kWide] = {}, g[kWide] = {};
    if (a.counts(row)) {
      const typename Wide::Raw raw_value = Wide::read(x + value),
                               raw_gate = Wide::read(x + value + width),
                               raw_d = Wide::read(d_y + std::int64_t{p} * kWide);
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
  for (std::uint32_t p = first_pack(); p < a.packs; p += pack_step())
    if (!a.counts(a.per_row.quotient(p))) Wide::store(x + std::int64_t{p} * kWide, zeros);
}

}  // namespace choir::cuda
