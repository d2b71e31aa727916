#pragma once
// Sums over flat memory and flat maps on the GPU; what each computes, and in which order, is said
// in kernels/reduce.hpp.
#include "kernels/elementwise.cuh"

namespace choir::cuda {

/// out = a + b. Floor: 3 element transfers.
template <class T>
__global__ void add_kernel(std::int64_t n, const T* a, const T* b, T* out) {
  map_elements(
      n, out, [](float x, float y) { return x + y; }, a, b);
}

}  // namespace choir::cuda
