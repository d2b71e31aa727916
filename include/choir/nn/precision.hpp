#pragma once
// Which element type computes, and which one the optimizer keeps.
#include <string_view>

#include "choir/core/dtype.hpp"

namespace choir {

struct Precision {
  DType compute = DType::f32;    ///< activations and the weights that GEMMs read
  DType master = DType::f32;     ///< optimizer copy of the weights, its moments, gradient sums
  DType statistic = DType::f32;  ///< means, log-sum-exp, per-token losses

  bool has_copy() const { return compute != master; }
};

/// "fp64", "fp32", "bf16-mixed". Throws DeckError for any other name.
Precision precision_of(std::string_view name);

}  // namespace choir
