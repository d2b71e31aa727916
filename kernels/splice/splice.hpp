#pragma once
// Rows of audio among the rows of a prompt. No two rows name the same audio, so backward is a copy
// with the same index, without sums. Floor per element of named audio: forward 3 transfers,
// backward 2 plus writing zeros before.
#include "choir/ops/splice.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
template <class T>
void splice_forward(const ops::SpliceForward& args);
/// d_audio must be zero.
template <class T>
void splice_backward(const ops::SpliceBackward& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void splice_forward(const Stream& stream, const ops::SpliceForward& args);
/// d_audio must be zero.
CHOIR_CUDA_KERNEL void splice_backward(const Stream& stream, const ops::SpliceBackward& args);
}  // namespace cuda

namespace ref {
/// f64.
void splice_forward(const ops::SpliceForward& args);
void splice_backward(const ops::SpliceBackward& args);
}  // namespace ref

}  // namespace choir
