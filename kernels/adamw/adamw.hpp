#pragma once
// AdamW on flat memory: one pass, no temporaries. Bias corrections and the decay factor are
// computed once, in double. The step is (lr / (1 - b1^t)) m / (sqrt(v) / sqrt(1 - b2^t) + eps), the
// decay a factor 1 - lr * decay on w beforehand. Floor: 28 bytes per parameter for f32 (reads w g m
// v, writes w m v), 30 with a 16-bit copy, 24 for bf16 masters; 14 FLOP, and for bf16 masters a
// quarter of a Philox call, which is hidden behind memory accesses with wide vectors.
#include "choir/ops/adamw.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
void adamw(const ops::AdamW& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void adamw(const Stream& stream, const ops::AdamW& args);
}  // namespace cuda

namespace ref {
/// f64 masters and moments, or bf16 masters with f64 moments; an optional copy is bf16 or f16.
void adamw(const ops::AdamW& args);
}  // namespace ref

}  // namespace choir
