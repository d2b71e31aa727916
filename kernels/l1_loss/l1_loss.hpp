#pragma once
// Absolute errors of rows. The gradient of an element is one of three numbers and overwrites the
// prediction. Floor per element of 16 bits with a target of 32 bits: 6 bytes read and 2 written.
#include "choir/ops/l1_loss.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
template <class T>
void l1_loss(const ops::L1Loss& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void l1_loss(const Stream& stream, const ops::L1Loss& args);
}  // namespace cuda

namespace ref {
/// f64.
void l1_loss(const ops::L1Loss& args);
}  // namespace ref

}  // namespace choir
