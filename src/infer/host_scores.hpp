#pragma once
// Scores of a model in host memory, as what is decided by them reads them.
#include <span>

#include "choir/core/tensor.hpp"

namespace choir {

/// `from` in host memory, f64, f32, bf16 or f16; at least as many elements as `to`.
void to_floats(const TensorView& from, std::span<float> to);
void to_doubles(const TensorView& from, std::span<double> to);

}  // namespace choir
