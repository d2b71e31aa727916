#pragma once
// Tools for tests of ops: owning host tensors, random and poisoned contents, comparison with a
// reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "src/device/cpu_device.hpp"

namespace choir {

/// Element types of model tensors.
inline constexpr DType kElementTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

/// Relative error of one rounding to nearest: half the distance of neighbours at 1.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-53;
    case DType::f32:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    default:
      return 0.0;
  }
}

/// Absolute error of one rounding below the normal numbers: half the distance of neighbours at 0.
inline double underflow_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-1074;  // half of it is not a double
    case DType::f32:
      return 0x1p-150;
    case DType::bf16:
      return 0x1p-134;
    case DType::f16:
      return 0x1p-25;
    default:
      return 0.0;
  }
}

/// Type of statistics, sums and parameter gradients for activations of `dtype`.
inline DType sum_dtype(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

/// Relative error of one operation whose result is stored as `dtype`: 16 bits are rounded twice,
/// through f32.
inline double operation_roundoff(DType dtype) {
  const double u = unit_roundoff(dtype), sum = unit_roundoff(sum_dtype(dtype));
  return sum_dtype(dtype) == dtype ? u : u + sum + u * sum;
}

inline double element_as_double(const TensorView& x, std::int64_t i) {
  switch (x.dtype) {
    case DType::i32:
      return static_cast<const std::int32_t*>(x.data)[i];
    case DType::u8:
      return static_cast<const std::uint8_t*>(x.data)[i];
    default:
      return ref::load(x.data, x.dtype, i);
  }
}

inline void set_element(const TensorView& x, std::int64_t i, double value) {
  switch (x.dtype) {
    case DType::i32:
      static_cast<std::int32_t*>(x.data)[i] = static_cast<std::int32_t>(value);
      return;
    case DType::u8:
      static_cast<std::uint8_t*>(x.data)[i] = static_cast<std::uint8_t>(value);
      return;
    default:
      ref::store(x.data, x.dtype, i, value);
  }
}

/// A tensor that owns its memory (64-byte aligned); copies are deep. `skew` elements are skipped at
/// the start, so that kernels are tested with addresses that are aligned to the element only. Guard
/// bytes behind the end are checked.
class HostTensor {
 public:
  HostTensor() = default;
  /// Starts poisoned: NaN (or a huge integer) in every element, so that an element that was not
  /// written is detected.
  HostTensor(DType dtype, const Shape& shape, int skew = 0)
      : dtype_(dtype), shape_(shape), skew_(skew) {
    storage_.assign(kAlign + skew_bytes() + bytes() + kGuard, kGuardByte);
    poison();
  }
  static HostTensor filled(DType dtype, const Shape& shape, double value) {
    HostTensor t(dtype, shape);
    for (std::int64_t i = 0; i < t.count(); ++i) t.set(i, value);
    return t;
  }
  /// Normal numbers of standard deviation `deviation` around `mean`; a function of (seed, index)
  /// only.
  static HostTensor normal(DType dtype, const Shape& shape, std::uint64_t seed,
                           double deviation = 1, double mean = 0) {
    HostTensor t(dtype, shape);
    const PhiloxKey key = philox_key(seed, "test");
    std::vector<double>& drawn = drawn_normals(seed);
    for (std::int64_t i = 0; i < t.count(); ++i) {
      const auto at = static_cast<std::uint64_t>(i);
      if (at == drawn.size() && at < kKeptNormals) drawn.push_back(normal_at(key, at));
      t.set(i, mean + deviation * (at < drawn.size() ? drawn[at] : normal_at(key, at)));
    }
    return t;
  }
  /// Uniform integers in [0, limit), i32.
  static HostTensor integers(const Shape& shape, std::uint64_t seed, std::int64_t limit) {
    HostTensor t(DType::i32, shape);
    const PhiloxKey key = philox_key(seed, "test integers");
    for (std::int64_t i = 0; i < t.count(); ++i)
      t.set(i, std::floor(uniform01(philox_at(key, static_cast<std::uint64_t>(i))[0]) *
                          static_cast<double>(limit)));
    return t;
  }

  TensorView view() const { return {data(), dtype_, shape_}; }
  operator TensorView() const { return shape_.rank() == 0 ? TensorView{} : view(); }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t count() const { return shape_.rank() == 0 ? 0 : shape_.count(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype_); }
  void* data() const {
    auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    address = (address + kAlign - 1) / kAlign * kAlign + skew_bytes();
    return reinterpret_cast<void*>(address);
  }
  template <class T>
  T* as() const {
    return view().template as<T>();
  }
  double operator[](std::int64_t i) const { return element_as_double(view(), i); }
  void set(std::int64_t i, double value) { set_element(view(), i, value); }

  /// The same numbers in another dtype. Conversion to f64 is exact and gives the input of
  /// references.
  HostTensor to(DType other) const {
    if (shape_.rank() == 0) return {};
    HostTensor t(other, shape_);
    for (std::int64_t i = 0; i < count(); ++i) t.set(i, (*this)[i]);
    return t;
  }
  HostTensor(const HostTensor& other) : HostTensor(other.dtype_, other.shape_, other.skew_) {
    if (other.count() > 0) std::memcpy(data(), other.data(), bytes());
  }
  HostTensor(HostTensor&&) = default;
  HostTensor& operator=(HostTensor other) {
    std::swap(storage_, other.storage_);
    dtype_ = other.dtype_, shape_ = other.shape_, skew_ = other.skew_;
    return *this;
  }

  void poison() {
    const bool number = unit_roundoff(dtype_) > 0;
    std::memset(data(), number ? 0xff : 0x7f, bytes());
  }
  /// True if nothing was written behind the last element.
  bool guard_intact() const {
    const auto* end = static_cast<const unsigned char*>(data()) + bytes();
    for (const auto* p = end; p < storage_.data() + storage_.size(); ++p)
      if (*p != kGuardByte) return false;
    return true;
  }
  bool same_bits(const HostTensor& other) const {
    return dtype_ == other.dtype_ && shape_ == other.shape_ &&
           std::memcmp(data(), other.data(), bytes()) == 0;
  }

 private:
  /// The first numbers of a seed are cached: few seeds fill all tensors, and a logarithm takes
  /// longer than most operations on them.
  static std::vector<double>& drawn_normals(std::uint64_t seed) {
    static thread_local std::map<std::uint64_t, std::vector<double>> of_seeds;
    return of_seeds[seed];
  }
  static constexpr std::size_t kKeptNormals = std::size_t{1} << 18;
  static constexpr std::size_t kAlign = 64, kGuard = 64;
  static constexpr unsigned char kGuardByte = 0xA5;
  std::size_t skew_bytes() const { return static_cast<std::size_t>(skew_) * size_of(dtype_); }
  DType dtype_ = DType::f32;
  Shape shape_;
  int skew_ = 0;
  std::vector<unsigned char> storage_;
};

/// Units in the last place between two floats of one sign; NaN equals NaN.
inline double ulps(float a, double exact) {
  if (std::isnan(a) && std::isnan(exact)) return 0;
  const auto b = static_cast<float>(exact);
  if (std::isinf(a) || std::isinf(b)) return a == b ? 0 : std::numeric_limits<double>::infinity();
  const double spacing = std::max(
      static_cast<double>(std::nextafter(std::fabs(b), INFINITY)) - std::fabs(b), 0x1p-149);
  return std::fabs(static_cast<double>(a) - exact) / spacing;
}

/// Checks |actual - expected| <= absolute + relative * |expected| for every element; the message
/// names the worst one.
inline void expect_close(const TensorView& actual, const TensorView& expected, double relative,
                         double absolute, const std::string& what) {
  ASSERT_EQ(actual.count(), expected.count()) << what;
  double worst = 0;
  std::int64_t where = -1;
  for (std::int64_t i = 0; i < actual.count(); ++i) {
    const double a = element_as_double(actual, i), e = element_as_double(expected, i);
    if (a == e) continue;
    const double excess = std::fabs(a - e) / (absolute + relative * std::fabs(e));
    if (!(excess <= worst)) worst = std::isnan(excess) ? INFINITY : excess, where = i;
  }
  EXPECT_LE(worst, 1.0) << what << ": element " << where << " of " << to_string(actual.shape)
                        << " is " << element_as_double(actual, where) << ", expected "
                        << element_as_double(expected, where) << " (allowed error " << relative
                        << " relative + " << absolute << " absolute)";
}

/// A cpu stream that counts work.
struct CpuBench {
  CpuDevice device;
  WorkCounter work;
  Stream stream{device, &work};
};

}  // namespace choir
