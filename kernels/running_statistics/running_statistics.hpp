#pragma once
// Running statistics after a step. A channel is a chain of one addition per micro-batch, in f64;
// channels are independent. Floor: the records once, which is negligible; bound by the launch.
#include "choir/ops/running_statistics.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
template <class T>
void update_running_statistics(const ops::RunningUpdate& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void update_running_statistics(const Stream& stream,
                                                 const ops::RunningUpdate& args);
}  // namespace cuda

namespace ref {
/// All tensors are f64, and the control is in host memory.
void update_running_statistics(const ops::RunningUpdate& args);
}  // namespace ref

}  // namespace choir
