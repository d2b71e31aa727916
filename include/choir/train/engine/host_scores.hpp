#pragma once
// Scores of a model in host memory, as what is decided by them reads them.
#include <span>

#include "choir/core/tensor.hpp"

namespace choir {

/// `from` in host memory, f64, f32, bf16 or f16; as many elements as `to`.
void to_floats(const TensorView& from, std::span<float> to);

}  // namespace choir
