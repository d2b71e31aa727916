// The nonlinearities and gated linear units on the GPU; formulas in
// kernels/activation/activation.hpp. Floor per output element: forward 2 element transfers (gated
// 3), backward 3 (5). At 4.3 TB/s an H200 has about 28 (forward) to 43 (backward) instructions per
// 16-bit element before arithmetic becomes the limit: the 16-bit forms use the approximate
// exponential and reciprocal and the short polynomial (about 20), f32 the exact ones.

#include "kernels/activation/activation.hpp"

#include "kernels/activation/activation_math.cuh"
#include "kernels/cpu/frames.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/early_launch.cuh"

namespace choir::cuda {

template <class T, bool kPacked, class F>
__global__ void __launch_bounds__(kElementwiseThreads)
    activation_forward_kernel(std::int64_t n, const T* x, T* y) {
  let_next_begin();
  wait_for_earlier();
  map_flat<T, kPacked, 1>(n, {x}, y, [](float v) { return F::value(v); });
}

template <class T, bool kPacked, class F>
__global__ void __launch_bounds__(kElementwiseThreads)
    activation_backward_kernel(std::int64_t n, const T* x, const T* d_y, T* d_x) {
  follow_earlier();
  map_flat<T, kPacked, 2>(n, {x, d_y}, d_x, [](float v, float d) { return d * F::slope(v); });
}

/// y [rows, F] = f(gate) up, x [rows, gate F | up F], f the function Gate; fewer than 2^31 elements
/// of y. `per_row` divides by the number of packs in a row.
template <class T, bool kPacked, class Gate>
__global__ void __launch_bounds__(kElementwiseThreads)
    gated_forward_kernel(std::uint32_t packs, Divisor per_row, const T* x, T* y) {
  using Wide = Access<T, kPacked>;
  let_next_begin();
  wait_for_earlier();
  constexpr int kWide = Wide::kWide;
  const std::int64_t width = std::int64_t{per_row.divisor} * kWide;
  for (std::int64_t p = global_thread(); p < packs; p += global_threads()) {
    const T* gate =
        x + (p + per_row.quotient(static_cast<std::uint32_t>(p)) * std::int64_t{per_row.divisor}) *
                kWide;
    const typename Wide::Raw raw_gate = Wide::read(gate), raw_up = Wide::read(gate + width);
    float g[kWide], up[kWide], out[kWide];
    Wide::unpack(raw_gate, g), Wide::unpack(raw_up, up);
#pragma unroll
    for (int i = 0; i < kWide; ++i) out[i] = g[i] * Gate::below(g[i]) * up[i];
    Wide::store(y + p * kWide, out);
  }
}

template <class T, bool kPacked, class Gate>
__global__ void __launch_bounds__(kElementwiseThreads)
    gated_backward_kernel(std::uint32_t packs, Divisor per_row, const T* x, const T* d_y, T* d_x) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const std::int64_t width = std::int64_t{per_row.divisor} * kWide;
  for (std::int64_t p = global_thread(); p < packs; p += global_threads()) {
    const std::int64_t gate =
        (p + per_row.quotient(static_cast<std::uint32_t>(p)) * std::int64_t{per_row.divisor}) *
        kWide;
    const typename Wide::Raw raw_gate = Wide::read(x + gate), raw_up = Wide::read(x + gate + width),
                             raw_d = Wide::read(d_y + p * kWide);
    float g[kWide], up[kWide], d[kWide];
    Wide::unpack(raw_gate, g), Wide::unpack(raw_up, up), Wide::unpack(raw_d, d);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const BelowAndDensity s = Gate::parts(g[i]);  // the slope in the place of the density
      const float d_up = d[i] * g[i] * s.below;
      g[i] = d[i] * up[i] * s.density;
      up[i] = d_up;
    }
    Wide::store(d_x + gate, g), Wide::store(d_x + gate + width, up);
  }
}

namespace {

/// Calls f(F{}), where F is the gate of this gated kind.
template <class T, class F>
void with_gate(ops::Activation kind, const F& f) {
  kind == ops::Activation::geglu ? f(GeluTanh<MathFor<T>>{}) : f(Silu<MathFor<T>>{});
}

template <class T, bool kPacked>
void gated_forward(const Stream& stream, ops::Activation kind, const TensorView& x,
                   const TensorView& y) {
  const std::int64_t width = y.shape.back(), per_row = width / Access<T, kPacked>::kWide;
  with_gate<T>(kind, [&](auto gate) {
    for_row_parts(y.shape.rows(), per_row, 1, [&](std::int64_t first, std::int64_t rows) {
      launch_small_early(
          stream, kind == ops::Activation::geglu ? "geglu_forward" : "swiglu_forward",
          gated_forward_kernel<T, kPacked, decltype(gate)>,
          {elementwise_blocks(rows * per_row), kElementwiseThreads}, rows * per_row,
          Divisor(per_row), x.as<T>() + first * 2 * width, y.as<T>() + first * width);
    });
  });
}

template <class T, bool kPacked>
void gated_backward(const Stream& stream, ops::Activation kind, const TensorView& x,
                    const TensorView& d_y, const TensorView& d_x) {
  const std::int64_t width = d_y.shape.back(), per_row = width / Access<T, kPacked>::kWide;
  with_gate<T>(kind, [&](auto gate) {
    for_row_parts(d_y.shape.rows(), per_row, 1, [&](std::int64_t first, std::int64_t rows) {
      launch(stream, kind == ops::Activation::geglu ? "geglu_backward" : "swiglu_backward",
             gated_backward_kernel<T, kPacked, decltype(gate)>,
             {elementwise_blocks(rows * per_row), kElementwiseThreads}, rows * per_row,
             Divisor(per_row), x.as<T>() + first * 2 * width, d_y.as<T>() + first * width,
             d_x.as<T>() + first * 2 * width);
    });
  });
}

}  // namespace

void activation_forward(const Stream& stream, ops::Activation kind, const TensorView& x,
                        const TensorView& y) {
  const std::int64_t n = y.count();
  if (n == 0) return;
  with_element(y.dtype, [&](auto t) {
    using T = decltype(t);
    const bool gated = ops::is_gated(kind);
    // Flat maps handle the ragged tail of the whole tensor themselves.
    with_bool(can_pack<T>(gated ? y.shape.back() : 0, x.as<T>(), y.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      if (gated) return gated_forward<T, kPacked>(stream, kind, x, y);
      with_function<T>(kind, [&](auto f) {
        launch_small_early(
            stream, "activation_forward", activation_forward_kernel<T, kPacked, decltype(f)>,
            {map_blocks<T, kPacked, 1>(n), kElementwiseThreads}, n, x.as<T>(), y.as<T>());
      });
    });
  });
}

void activation_backward(const Stream& stream, ops::Activation kind, const TensorView& x,
                         const TensorView& d_y, const TensorView& d_x) {
  const std::int64_t n = d_y.count();
  if (n == 0) return;
  with_element(d_y.dtype, [&](auto t) {
    using T = decltype(t);
    const bool gated = ops::is_gated(kind);
    const bool can = can_pack<T>(gated ? d_y.shape.back() : 0, x.as<T>(), d_y.as<T>(), d_x.as<T>());
    with_bool(can, [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      if (gated) return gated_backward<T, kPacked>(stream, kind, x, d_y, d_x);
      with_function<T>(kind, [&](auto f) {
        launch(stream, "activation_backward", activation_backward_kernel<T, kPacked, decltype(f)>,
               {map_blocks<T, kPacked, 2>(n), kElementwiseThreads}, n, x.as<T>(), d_y.as<T>(),
               d_x.as<T>());
      });
    });
  });
}

// The gated linear unit on the GPU; formulas in kernels/activation/activation.hpp. Floor per output
// element: forward 3 element transfers, backward 5. A thread processes a pack of columns of a row
// at a time; masked rows are written, not read.

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
  follow_earlier();
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
  follow_earlier();
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
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const float zeros[kWide] = {};
  for (std::uint32_t p = first_pack(); p < a.packs; p += pack_step())
    if (!a.counts(a.per_row.quotient(p))) Wide::store(x + std::int64_t{p} * kWide, zeros);
}

namespace {

/// Calls f(first row, FramePacks) for parts of all rows that 32 bits can index: whole samples, or a
/// part of one.
template <class T, bool kPacked, class F>
void for_parts(std::int64_t rows, std::int64_t width, const std::int32_t* lengths,
               std::int64_t tokens, const F& f) {
  const std::int64_t per_row = width / Access<T, kPacked>::kWide;
  for_row_parts(rows, per_row, tokens, [&](std::int64_t first, std::int64_t count) {
    f(first, FramePacks{static_cast<std::uint32_t>(count * per_row), Divisor(per_row),
                        Divisor(tokens), lengths == nullptr ? nullptr : lengths + first / tokens,
                        static_cast<std::uint32_t>(first % tokens)});
  });
}

}  // namespace

void glu_forward(const Stream& stream, const TensorView& x, const TensorView& y,
                 const std::int32_t* lengths, std::int64_t tokens) {
  if (y.count() == 0) return;
  const std::int64_t width = y.shape.back();
  with_element(y.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(width, x.as<T>(), y.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      for_parts<T, kPacked>(y.shape.rows(), width, lengths, tokens, [&](auto first, auto a) {
        launch(stream, "glu_forward", glu_forward_kernel<T, kPacked>,
               {elementwise_blocks(a.packs), kElementwiseThreads}, a, x.as<T>() + first * 2 * width,
               y.as<T>() + first * width);
      });
    });
  });
}

void glu_backward(const Stream& stream, const TensorView& x, const TensorView& d_y,
                  const TensorView& d_x, const std::int32_t* lengths, std::int64_t tokens) {
  if (d_y.count() == 0) return;
  const std::int64_t width = d_y.shape.back();
  with_element(d_y.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(width, x.as<T>(), d_y.as<T>(), d_x.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      for_parts<T, kPacked>(d_y.shape.rows(), width, lengths, tokens, [&](auto first, auto a) {
        launch(stream, "glu_backward", glu_backward_kernel<T, kPacked>,
               {elementwise_blocks(a.packs), kElementwiseThreads}, a, x.as<T>() + first * 2 * width,
               d_y.as<T>() + first * width, d_x.as<T>() + first * 2 * width);
      });
    });
  });
}

void mask_frames(const Stream& stream, const TensorView& x, const std::int32_t* lengths,
                 std::int64_t tokens) {
  if (x.count() == 0) return;
  const std::int64_t width = x.shape.back();
  with_element(x.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(width, x.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      for_parts<T, kPacked>(x.shape.rows(), width, lengths, tokens, [&](auto first, auto a) {
        launch(stream, "mask_frames", mask_frames_kernel<T, kPacked>,
               {elementwise_blocks(a.packs), kElementwiseThreads}, a, x.as<T>() + first * width);
      });
    });
  });
}

}  // namespace choir::cuda
