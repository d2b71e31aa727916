#pragma once
// LayerNorm over channels of several ranks; formulas in choir/ops/split_norm.hpp and
// kernels/norm/norm.hpp. Floors per element: moments 1 transfer, forward 2, sums 2, backward 3; in
// addition 8 bytes per row and rank.
#include "choir/ops/split_norm.hpp"
#include "kernels/cuda_kernel.hpp"
#include "kernels/norm/norm_plan.hpp"

namespace choir {

namespace cpu {
template <class T>
void split_norm_moments(const TensorView& x, const TensorView& moments);
template <class T>
void split_norm_forward(const ops::SplitNormForward& args);
template <class T>
void split_norm_sums(const ops::SplitNormBackward& args);
template <class T>
void split_norm_backward(const ops::SplitNormBackward& args);
std::int64_t split_norm_workspace(std::int64_t rows, std::int64_t width);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void split_norm_moments(const Stream& stream, const TensorView& x,
                                          const TensorView& moments);
CHOIR_CUDA_KERNEL void split_norm_forward(const Stream& stream, const ops::SplitNormForward& args);
CHOIR_CUDA_KERNEL void split_norm_sums(const Stream& stream, const ops::SplitNormBackward& args);
/// The workspace has NormBackwardPlan::workspace_bytes().
CHOIR_CUDA_KERNEL void split_norm_backward(const Stream& stream,
                                           const ops::SplitNormBackward& args);
}  // namespace cuda

namespace ref {
/// f64.
void split_norm_moments(const TensorView& x, const TensorView& moments);
void split_norm_forward(const ops::SplitNormForward& args);
void split_norm_sums(const ops::SplitNormBackward& args);
void split_norm_backward(const ops::SplitNormBackward& args);
}  // namespace ref

}  // namespace choir
