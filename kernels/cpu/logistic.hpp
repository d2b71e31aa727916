#pragma once
// The logistic function, with the accuracy that results of type T can represent.
#include <type_traits>

#include "kernels/cpu/vector_math.hpp"

namespace choir::cpu {

/// For results that are rounded to bf16 at once; the relative error is 6e-6.
inline Logistic<Floats> short_logistic(Floats x) {
  const Floats e = short_exp(-abs(x)), r = short_reciprocal(1.0f + e);
  return {x < 0.0f ? e * r : r, e * r * r};
}

template <class T>
inline Logistic<Vec<T>> logistic_for(Vec<T> x) {
  if constexpr (std::is_same_v<T, bf16>)
    return short_logistic(x);
  else
    return logistic(x);
}

}  // namespace choir::cpu
