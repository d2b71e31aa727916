#pragma once
// Sums over flat memory and flat maps. Orders of addition are fixed:
// - sums_of_squares: on the CPU 32 interleaved double sums per chunk, added lane by lane; a chunk
//   belongs to one thread, and the vector width does not matter either. For the GPU see reduce.cuh;
// - tree_sums: the left subtree of n leaves has the largest power of two below n, so that any two
//   ranges split at powers of two add up as they would alone; the same on every device;
// - bias_gradient: partial sums over fixed blocks of rows (row_blocks.hpp).
// Floor: every operand is transferred once; all are bandwidth bound.
#include <span>

#include "choir/ops/reduce.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
template <class A>
void sums_of_squares(std::span<const ops::Summed> tensors);
template <class A>
void tree_sums(std::span<const ops::Summed> tensors);
template <class T>
void bias_gradient(const TensorView& d_y, const TensorView& d_bias, const TensorView& workspace);
std::int64_t bias_gradient_workspace(std::int64_t rows, std::int64_t width);
template <class T>
void add(const TensorView& a, const TensorView& b, const TensorView& out);
template <class From, class To>
void cast(const TensorView& from, const TensorView& to);
template <class A>
void scale(const TensorView& x, double factor);
void zero(const TensorView& x);
void copy(const TensorView& from, const TensorView& to);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void sums_of_squares(const Stream& stream, std::span<const ops::Summed> tensors);
CHOIR_CUDA_KERNEL void tree_sums(const Stream& stream, std::span<const ops::Summed> tensors);
CHOIR_CUDA_KERNEL void cast(const Stream& stream, const TensorView& from, const TensorView& to);
CHOIR_CUDA_KERNEL void scale(const Stream& stream, const TensorView& x, double factor);
CHOIR_CUDA_KERNEL void add(const Stream& stream, const TensorView& a, const TensorView& b,
                           const TensorView& out);
CHOIR_CUDA_KERNEL void zero(const Stream& stream, const TensorView& x);
CHOIR_CUDA_KERNEL void copy(const Stream& stream, const TensorView& from, const TensorView& to);
}  // namespace cuda

namespace ref {
/// All f64.
void sum_of_squares(const TensorView& x, const TensorView& partials);
void tree_sum(const TensorView& x, const TensorView& total);
void bias_gradient(const TensorView& d_y, const TensorView& d_bias);
}  // namespace ref

}  // namespace choir
