#include "src/infer/host_scores.hpp"

#include <algorithm>

namespace choir {
namespace {

template <class T, class To>
void widen(const void* from, std::span<To> to) {
  const T* const data = static_cast<const T*>(from);
  std::transform(data, data + to.size(), to.begin(), [](T x) {
    if constexpr (sizeof(T) == 2)
      return static_cast<To>(static_cast<float>(x));
    else
      return static_cast<To>(x);
  });
}

template <class To>
void widen_any(const TensorView& from, std::span<To> to) {
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

}  // namespace

void to_floats(const TensorView& from, std::span<float> to) {
  widen_any(from, to);
}

void to_doubles(const TensorView& from, std::span<double> to) {
  widen_any(from, to);
}

}  // namespace choir
