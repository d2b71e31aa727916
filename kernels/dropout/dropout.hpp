#pragma once
// Dropout by Philox 4x32-10 of global coordinates; one call of the generator gives four features.
// Floor per element: 2 transfers; about 25 integer operations, which wide vectors hide behind
// memory accesses.
#include <cmath>

#include "choir/ops/dropout.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

/// Elements whose word of the generator is below this are dropped.
inline std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(std::ceil(probability * 0x1p32));
}

namespace cpu {
template <class T>
void dropout(const ops::Dropout& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void dropout(const Stream& stream, const ops::Dropout& args);
}  // namespace cuda

namespace ref {
/// f64.
void dropout(const ops::Dropout& args);
}  // namespace ref

}  // namespace choir
