#pragma once
// Copies of rows and of blocks of rows. copy_rows() copies rows between two strided memory areas,
// for example new keys and values into a cache; on the CPU it is one memcpy per row. copy_blocks()
// copies rows that are cut into equal blocks (heads, parts for several ranks) between two layouts;
// blocks may be replicated or summed. Floor: 1 read per term, 1 write.

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/copy_rows.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// A layout of blocks. Element e of block k in row r is at data + r*row_stride +
/// k/group*group_stride + k%group*stride + e (in elements).
struct BlockPlace {
  void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t stride = 0;
  std::int64_t group = 1;
  std::int64_t group_stride = 0;
};

/// to(r, k, :) = from(r, k*terms, :) + ... + from(r, k*terms + terms - 1, :), added in this order
/// in f32 (f64 for f64). With one term the bits are copied, for any dtype. `to` does not overlap.
struct CopyBlocks {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t blocks = 0;  ///< blocks of `to`
  std::int64_t width = 0;   ///< elements per block
  std::int64_t terms = 1;
  BlockPlace from, to;
};

void copy_blocks(const Stream& stream, const CopyBlocks& args);

}  // namespace choir::ops

namespace choir::cuda {

/// Elements of `unit` bytes.
CHOIR_CUDA_KERNEL void copy_rows(const Stream& stream, std::int64_t unit, std::int64_t rows,
                                 std::int64_t width, const ops::RowBlock& from,
                                 const ops::RowBlock& to, const std::int32_t* further);

}  // namespace choir::cuda

namespace choir {

namespace cpu {
/// One term; elements of any size `unit` in bytes.
void copy_blocks(const ops::CopyBlocks& args, std::int64_t unit);
template <class T>
void sum_blocks(const ops::CopyBlocks& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void copy_blocks(const Stream& stream, const ops::CopyBlocks& args);
}  // namespace cuda

namespace ref {
/// f64.
void copy_blocks(const ops::CopyBlocks& args);
}  // namespace ref

}  // namespace choir
