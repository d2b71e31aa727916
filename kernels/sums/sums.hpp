#pragma once
// Sums over flat memory and simple flat maps. All sums have a fixed order: they are deterministic,
// and independent of the number of threads where documented.

#include <span>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

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

// The numbers of targets that losses belong to, counted where the losses are computed, and running
// sums of both. Counts are integers in f64, so they are exact up to 2^53 in any order. Floor: 4
// bytes per target; the rest is the start of a kernel.

/// count[0] = number of elements of `unmasked` that are 0 or more + sum of `lengths` + number.
struct CountTargets {
  TensorView unmasked;  ///< [n] i32; may be empty
  TensorView lengths;   ///< [B] i32, each 0 or more; may be empty
  double number = 0;
  TensorView count;  ///< [1] f64
};
/// Local.
void count_targets(const Stream& stream, const CountTargets& args);

/// sum[0] += own[0]; count[0] += own[1].
struct AddLosses {
  TensorView own;         ///< [2] f64
  TensorView sum, count;  ///< [1] f64
};
/// Local.
void add_losses(const Stream& stream, const AddLosses& args);

}  // namespace choir::ops

namespace choir::cuda {

// Sums over rows in two stages of fixed order on the GPU. First, every block of rows leaves one
// partial sum per column in a workspace; then the partial sums of a column are added, which is
// implemented here.

/// The partial sum of block b and array y is at partials + b * block_stride + y * array_stride.
struct ColumnPartials {
  const float* partials = nullptr;
  std::int64_t blocks = 0, block_stride = 0, array_stride = 0;
  std::int64_t width = 0;
  float* total[2] = {};  ///< total[y] [width] += the sum; the second may be nullptr
};

CHOIR_CUDA_KERNEL void add_partials(const Stream& stream, const ColumnPartials& partials);

// Partition of the column sum of bias_gradient on the GPU. It depends on the shape alone, so that
// the workspace can be planned without a GPU.

struct BiasGradientPlan {
  std::int64_t rows_per_block = 0, blocks = 0;  ///< along the rows
  std::int64_t stride = 0;                      ///< floats between partial sums

  BiasGradientPlan(std::int64_t rows, std::int64_t width) {
    // About 1056 blocks of 256 columns: eight for each of 132 multiprocessors. A block has at least
    // 32 rows, so that partial sums (8 bytes each) stay small compared with their input.
    constexpr std::int64_t kBlocks = 1056, kColumns = 256, kMinRows = 32;
    const std::int64_t tiles = (width + kColumns - 1) / kColumns;
    const std::int64_t wanted = kBlocks / (tiles < 1 ? 1 : tiles) + 1;
    const std::int64_t even = (rows + wanted - 1) / wanted;
    rows_per_block = even > kMinRows ? even : kMinRows;
    blocks = (rows + rows_per_block - 1) / rows_per_block;
    stride = (width + 31) / 32 * 32;
  }
  std::int64_t workspace_bytes() const {
    return blocks * stride * static_cast<std::int64_t>(sizeof(float));
  }
};

CHOIR_CUDA_KERNEL void bias_gradient(const Stream& stream, const TensorView& d_y,
                                     const TensorView& d_bias, const TensorView& workspace);

}  // namespace choir::cuda

namespace choir {

namespace cpu {

// Sums over flat memory and flat maps. Orders of addition are fixed:
// - sums_of_squares: on the CPU 32 interleaved double sums per chunk, added lane by lane; a chunk
//   belongs to one thread, and the vector width does not matter either. For the GPU see sums.cu;
// - tree_sums: the left subtree of n leaves has the largest power of two below n, so that any two
//   ranges split at powers of two add up as they would alone; the same on every device;
// - bias_gradient: partial sums over fixed blocks of rows (row_blocks.hpp).
// Floor: every operand is transferred once; all are bandwidth bound.

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
void count_targets(const ops::CountTargets& args);
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
CHOIR_CUDA_KERNEL void count_targets(const Stream& stream, const ops::CountTargets& args);
CHOIR_CUDA_KERNEL void add_losses(const Stream& stream, const ops::AddLosses& args);
}  // namespace cuda

namespace ref {
/// All f64.
void sum_of_squares(const TensorView& x, const TensorView& partials);
void tree_sum(const TensorView& x, const TensorView& total);
void bias_gradient(const TensorView& d_y, const TensorView& d_bias);
void count_targets(const ops::CountTargets& args);
}  // namespace ref

}  // namespace choir
