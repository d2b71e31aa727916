#pragma once
// Dispatch from the element type of a tensor to the template argument of a kernel.
#include "choir/core/tensor.hpp"

namespace choir::cuda {

[[noreturn]] inline void refuse_element(DType dtype) {
  throw Error(ExitCode::deck, fmt::format("no cuda kernel for elements of type {}", name_of(dtype)),
              dtype == DType::f64 ? "fp64 runs on the CPU: device=cpu" : "");
}

/// f(T{}) with T the element type of activations on this device.
template <class F>
void with_element(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    default:
      refuse_element(dtype);
  }
}

}  // namespace choir::cuda
