#pragma once
// LayerNorm and RMSNorm over rows of width C; forward is fused with the preceding residual
// addition. Forward: mean, then variance of the centred row (two passes over a row that stays in
// L1), then the result. Backward, with h = (x - mean) rstd and g = w dy: dx = rstd (g - mean(g) - h
// mean(g h)), dw = sum dy h, db = sum dy over rows (RMSNorm: mean = 0 and no mean(g)). Derivation:
// Ba, Kiros, Hinton 2016, appendix; Zhang & Sennrich 2019. Floor per element: forward 2 (4 with
// delta) element transfers, 8 FLOP; backward 3, or 4 with accumulation, 14 FLOP. Statistics take
// 4-8 bytes per row.
#include "choir/ops/norm.hpp"
#include "kernels/cuda_kernel.hpp"
#include "kernels/norm/norm_plan.hpp"

namespace choir {

namespace cpu {
template <class T>
void norm_forward(const ops::NormForward& args);
template <class T>
void norm_backward(const ops::NormBackward& args);
std::int64_t norm_workspace(std::int64_t rows, std::int64_t width);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void norm_forward(const Stream& stream, const ops::NormForward& args);
/// The workspace has NormBackwardPlan::workspace_bytes().
CHOIR_CUDA_KERNEL void norm_backward(const Stream& stream, const ops::NormBackward& args);
}  // namespace cuda

namespace ref {
/// All tensors f64; `workspace` is not used.
void norm_forward(const ops::NormForward& args);
void norm_backward(const ops::NormBackward& args);
}  // namespace ref

}  // namespace choir
