#pragma once
// Operands of benchmarks: normal random numbers made on the host and copied to the device, in
// enough sets to exceed the caches, and exactly the same numbers for the fp64 reference. Device
// memory is never read by the host.
#include <cstdint>
#include <vector>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// Standard normal numbers by Philox, drawn once. Element i of operand k is number (k * 7919 + i)
/// mod size, and the size is prime, so neither rows nor operands repeat each other.
class NormalPool {
 public:
  explicit NormalPool(std::size_t size = 131071);
  float at(std::uint64_t operand, std::int64_t i) const {
    return values_[(operand * 7919 + static_cast<std::uint64_t>(i)) % values_.size()];
  }

 private:
  std::vector<float> values_;
};

/// A tensor on the device, with a copy for every set.
class Operand {
 public:
  const TensorView& operator[](std::int64_t call) const {
    return sets_[static_cast<std::size_t>(call) % sets_.size()];
  }
  /// Element i with the value on the device: rounded to its type.
  double exact(std::int64_t i) const;
  /// Elements [first, first + count).
  std::vector<double> exact(std::int64_t first, std::int64_t count) const;
  std::int64_t count() const { return sets_[0].count(); }
  DType dtype() const { return sets_[0].dtype; }

 private:
  friend class BenchOperands;
  std::vector<TensorView> sets_;
  const NormalPool* pool_ = nullptr;
  std::uint64_t number_ = 0;
  std::int64_t limit_ = 0;  // limit of integers; 0: real numbers
  bool positive_ = false;
};

/// The operands of one row of a bench; owns their memory.
class BenchOperands {
 public:
  /// `footprint`: bytes that one call touches; determines the number of sets.
  BenchOperands(Device& device, const NormalPool& pool, double footprint);
  /// A single set, for work that is not bound by bandwidth.
  BenchOperands(Device& device, const NormalPool& pool);

  Operand normal(DType dtype, const Shape& shape) { return make(dtype, shape, 0, false); }
  Operand positive(DType dtype, const Shape& shape) { return make(dtype, shape, 0, true); }
  /// i32, uniform in [0, limit).
  Operand integers(std::int64_t count, std::int64_t limit) {
    return make(DType::i32, {count}, limit, false);
  }
  /// Undefined contents, for results and workspaces.
  Operand empty(DType dtype, const Shape& shape);
  /// Restores the original numbers in every set.
  void restore(const Operand& operand);

  Device& device() const { return *device_; }
  std::int64_t sets() const { return sets_; }
  /// Elements [first, first + count) of device memory.
  std::vector<double> read(const TensorView& x, std::int64_t first, std::int64_t count) const;
  std::vector<double> read(const TensorView& x) const { return read(x, 0, x.count()); }

 private:
  Operand make(DType dtype, const Shape& shape, std::int64_t limit, bool positive);

  Device* device_;
  const NormalPool* pool_;
  std::int64_t sets_ = 1;
  std::uint64_t numbers_ = 0;
  std::vector<Buffer> buffers_;
};

/// True if the ops of this device and build support elements of `dtype`; determined by trying.
bool supports(Device& device, DType dtype);

}  // namespace choir::ops
