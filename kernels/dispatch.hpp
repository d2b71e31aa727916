#pragma once
// Helpers shared by the op launchers: dispatch on element type and device, and common checks.
#include "choir/core/error.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

inline bool on_cuda(const Stream& stream) {
  return stream.kind() == DeviceKind::cuda;
}

/// True on the CPU; false on the null device, where the op is only counted.
inline bool computes(const Stream& stream) {
  const DeviceKind kind = stream.kind();
  CHOIR_CHECK(kind != DeviceKind::cuda, "this op has no {} kernel", name_of(kind));
  return kind == DeviceKind::cpu;
}

/// Calls f(T{}), where T is the element type: double, float, bf16 or f16.
template <class F>
inline void with_element(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f64:
      return f(double{});
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    default:
      CHOIR_CHECK(false, "no kernel for elements of type {}", name_of(dtype));
  }
}

/// The type of statistics, sums and parameter gradients for activations of `dtype`.
inline DType sum_dtype_of(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

inline void check_tensor(const TensorView& x, DType dtype, std::int64_t count, const char* name) {
  CHOIR_CHECK(!x.empty(), "{} is missing", name);
  CHOIR_CHECK(x.dtype == dtype, "{} holds {}, not {}", name, name_of(x.dtype), name_of(dtype));
  CHOIR_CHECK(x.count() == count, "{} is {}: {} elements wanted", name, to_string(x.shape), count);
}
inline void check_optional(const TensorView& x, DType dtype, std::int64_t count, const char* name) {
  if (!x.empty()) check_tensor(x, dtype, count, name);
}
inline void check_workspace(const TensorView& x, std::int64_t bytes) {
  CHOIR_CHECK(bytes == 0 || (!x.empty() && static_cast<std::int64_t>(x.bytes()) >= bytes),
              "workspace of {} bytes, {} needed", x.empty() ? 0 : x.bytes(), bytes);
}

inline double as_bytes(const TensorView& x) {
  return x.empty() ? 0 : static_cast<double>(x.bytes());
}

}  // namespace choir::ops
