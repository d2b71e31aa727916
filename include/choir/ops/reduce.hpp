#pragma once
// Sums over flat memory and simple flat maps. All sums have a fixed order: they are deterministic,
// and independent of the number of threads where documented.
#include <span>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// Elements per partial sum of sum_of_squares.
inline constexpr std::int64_t kNormChunk = 16384;

/// A tensor to be summed, [n] of f32 or f64, and its sums, f64.
struct Summed {
  TensorView x, sums;
};

/// sums[i] = sum of x^2 over elements [i * kNormChunk, ...) in f64. The result is independent of
/// the thread count and of the GPU model, but CPU and CUDA add in different orders. sums [ceil(n /
/// kNormChunk)]. The call takes many tensors of one type at once, because most are small and a
/// separate kernel for each takes longer to start than to run.
void sums_of_squares(const Stream& stream, std::span<const Summed> tensors);
inline void sum_of_squares(const Stream& stream, const TensorView& x, const TensorView& sums) {
  const Summed one{x, sums};
  sums_of_squares(stream, {&one, 1});
}

/// sums[0] = sum of x in f64 by a balanced binary tree over the index (depth ceil(log2 n)); the
/// same bits on every device. Takes many tensors of one type at once and does not change them.
void tree_sums(const Stream& stream, std::span<const Summed> tensors);
inline void tree_sum(const Stream& stream, const TensorView& x, const TensorView& total) {
  const Summed one{x, total};
  tree_sums(stream, {&one, 1});
}

/// d_bias [C] += sum over rows of d_y [N, C]; d_bias is f32 (or f64). workspace:
/// bias_gradient_workspace() bytes of u8.
std::int64_t bias_gradient_workspace(const Stream& stream, std::int64_t rows, std::int64_t width);
void bias_gradient(const Stream& stream, const TensorView& d_y, const TensorView& d_bias,
                   const TensorView& workspace);

/// out = a + b, [n] of one dtype; out may be a or b.
void add(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out);
/// Element-wise conversion between f64, f32, bf16 and f16, round to nearest even.
void cast(const Stream& stream, const TensorView& from, const TensorView& to);
/// x *= factor; f32 or f64.
void scale(const Stream& stream, const TensorView& x, double factor);
void zero(const Stream& stream, const TensorView& x);
void copy(const Stream& stream, const TensorView& from, const TensorView& to);

}  // namespace choir::ops
