#include "choir/nn/precision.hpp"

#include <string>

#include "choir/core/error.hpp"

namespace choir {

Precision precision_of(std::string_view name) {
  if (name == "fp64") return {DType::f64, DType::f64, DType::f64};
  if (name == "fp32") return {DType::f32, DType::f32, DType::f32};
  if (name == "bf16-mixed") return {DType::bf16, DType::f32, DType::f32};
  throw DeckError("train.precision: '" + std::string(name) + "' is not supported on the cpu device",
                  "use fp64, fp32 or bf16-mixed");
}

}  // namespace choir
