#pragma once
// Rotary positions: the pair (a, b) of features becomes (a cos - b sin, b cos + a sin), with the
// angle of position and pair from a table. Floor: 2 element transfers for q and k, the table stays
// in cache; 3 FLOP.
#include "choir/ops/rope.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
void rope_table(double theta, const ops::RopeScaling& scaling, const TensorView& table,
                std::int64_t first_position);
template <class T>
void rope(const ops::Rope& args);
}  // namespace cpu

namespace cuda {
/// Computed by the host and copied; the host waits.
CHOIR_CUDA_KERNEL void rope_table(const Stream& stream, double theta,
                                  const ops::RopeScaling& scaling, const TensorView& table,
                                  std::int64_t first_position);
CHOIR_CUDA_KERNEL void rope(const Stream& stream, const ops::Rope& args);
}  // namespace cuda

namespace ref {
/// In f64; the angles come from theta, not from the table.
void rope(const ops::Rope& args, double theta);
}  // namespace ref

}  // namespace choir
