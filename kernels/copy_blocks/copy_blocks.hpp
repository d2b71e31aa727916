#pragma once
// Copies blocks of rows from one layout to another. Floor: 1 read per term, 1 write.
#include "choir/ops/copy_blocks.hpp"
#include "kernels/cuda_kernel.hpp"

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
