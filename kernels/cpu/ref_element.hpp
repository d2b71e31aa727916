#pragma once
// Access of references to one element of any numeric type, as a double.
#include <cstdint>

#include "choir/core/dtype.hpp"
#include "choir/core/error.hpp"

namespace choir::ref {

inline double load(const void* base, DType type, std::int64_t i) {
  switch (type) {
    case DType::f64:
      return static_cast<const double*>(base)[i];
    case DType::f32:
      return static_cast<double>(static_cast<const float*>(base)[i]);
    case DType::bf16:
      return static_cast<double>(static_cast<float>(static_cast<const bf16*>(base)[i]));
    case DType::f16:
      return static_cast<double>(static_cast<float>(static_cast<const f16*>(base)[i]));
    default:
      CHOIR_CHECK(false, "no number in an element of type {}", name_of(type));
  }
  return 0;
}

inline void store(void* base, DType type, std::int64_t i, double value) {
  switch (type) {
    case DType::f64:
      static_cast<double*>(base)[i] = value;
      return;
    case DType::f32:
      static_cast<float*>(base)[i] = static_cast<float>(value);
      return;
    case DType::bf16:
      static_cast<bf16*>(base)[i] = bf16(static_cast<float>(value));
      return;
    case DType::f16:
      static_cast<f16*>(base)[i] = f16(static_cast<float>(value));
      return;
    default:
      CHOIR_CHECK(false, "no number in an element of type {}", name_of(type));
  }
}

}  // namespace choir::ref
