#include "choir/train/engine/host_scores.hpp"

#include <algorithm>

namespace choir {
namespace {

template <class T>
void widen(const void* from, std::span<float> to) {
  const T* const data = static_cast<const T*>(from);
  std::transform(data, data + to.size(), to.begin(), [](T x) { return static_cast<float>(x); });
}

}  // namespace

void to_floats(const TensorView& from, std::span<float> to) {
  switch (from.dtype) {
    case DType::f64:
      return widen<double>(from.data, to);
    case DType::f32:
      return widen<float>(from.data, to);
    case DType::bf16:
      return widen<bf16>(from.data, to);
    default:
      return widen<f16>(from.data, to);
  }
}

}  // namespace choir
