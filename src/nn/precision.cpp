#include "choir/nn/precision.hpp"

#include <string>

#include "choir/core/error.hpp"

namespace choir {

Precision precision_of(std::string_view name) {
  using enum DType;  // hides the element types of the same names
  if (name == "fp64") return {f64, f64, f64, f64, f64};
  if (name == "fp32") return {f32, f32, f32, f32, f32};
  if (name == "bf16-mixed") return {bf16, f32, f32, f32, f32};
  if (name == "bf16-true") return {bf16, bf16, f32, f32, bf16};
  if (name == "fp16-mixed") return {f16, f32, f32, f32, f32};
  throw DeckError("train.precision: unknown precision '" + std::string(name) + "'",
                  "use fp64, fp32, bf16-mixed, bf16-true or fp16-mixed");
}

Precision with_narrow_frozen(Precision precision) {
  precision.frozen = precision.compute;
  return precision;
}

}  // namespace choir
