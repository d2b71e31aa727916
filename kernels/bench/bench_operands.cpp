#include "kernels/bench/bench_operands.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "choir/core/philox.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/sums/sums.hpp"

namespace choir::ops {
namespace {

/// Together the sets are larger than any cache of a GPU (50 MB on H100) and than the caches of a
/// core; a call that touches this much evicts its own operands.
constexpr double kBeyondCaches = 512.0 * (1 << 20);
constexpr double kMostSets = 64;
constexpr std::int64_t kStagedElements = std::int64_t{4} << 20;

std::int32_t integer_of(const NormalPool& pool, std::uint64_t number, std::int64_t i,
                        std::int64_t limit) {
  // The distribution function of the normal distribution makes them uniform.
  const double uniform = 0.5 * std::erfc(-pool.at(number, i) / std::sqrt(2.0));
  return static_cast<std::int32_t>(
      std::min(static_cast<std::int64_t>(uniform * static_cast<double>(limit)), limit - 1));
}

template <class F>
void with_stored(DType dtype, const F& f) {
  if (dtype == DType::i32) return f(std::int32_t{});
  with_element(dtype, f);
}

template <class T>
double widen(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(value);
  else
    return static_cast<double>(static_cast<float>(value));
}

}  // namespace

NormalPool::NormalPool(std::size_t size) : values_(size) {
  const PhiloxKey key = philox_key(1, "bench");
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < size; ++i) values_[i] = static_cast<float>(normal_at(key, i));
}

double Operand::exact(std::int64_t i) const {
  if (limit_ > 0) return integer_of(*pool_, number_, i, limit_);
  float value = pool_->at(number_, i);
  if (positive_) value = std::fabs(value);
  double rounded = 0;
  with_element(dtype(), [&](auto t) { rounded = widen(static_cast<decltype(t)>(value)); });
  return rounded;
}

std::vector<double> Operand::exact(std::int64_t first, std::int64_t count) const {
  std::vector<double> values(static_cast<std::size_t>(count));
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = exact(first + i);
  return values;
}

BenchOperands::BenchOperands(Device& device, const NormalPool& pool, double footprint)
    : BenchOperands(device, pool) {
  if (footprint < kBeyondCaches)
    sets_ = static_cast<std::int64_t>(
        std::clamp(std::ceil(kBeyondCaches / std::max(footprint, 1.0)), 2.0, kMostSets));
}

BenchOperands::BenchOperands(Device& device, const NormalPool& pool)
    : device_(&device), pool_(&pool) {}

Operand BenchOperands::empty(DType dtype, const Shape& shape) {
  Operand operand;
  operand.pool_ = pool_;
  for (std::int64_t s = 0; s < sets_; ++s) {
    TensorView view{nullptr, dtype, shape};
    buffers_.emplace_back(*device_, std::max<std::size_t>(view.bytes(), 64));
    view.data = buffers_.back().data();
    operand.sets_.push_back(view);
  }
  return operand;
}

Operand BenchOperands::make(DType dtype, const Shape& shape, std::int64_t limit, bool positive) {
  Operand operand = empty(dtype, shape);
  operand.number_ = ++numbers_;
  operand.limit_ = limit, operand.positive_ = positive;
  restore(operand);
  return operand;
}

void BenchOperands::restore(const Operand& operand) {
  const TensorView& first = operand.sets_[0];
  const std::size_t unit = size_of(first.dtype);
  std::vector<std::byte> staged(static_cast<std::size_t>(std::min(first.count(), kStagedElements)) *
                                unit);
  for (std::int64_t at = 0; at < first.count(); at += kStagedElements) {
    const std::int64_t n = std::min(kStagedElements, first.count() - at);
    with_stored(first.dtype, [&](auto t) {
      using T = decltype(t);
      auto* values = reinterpret_cast<T*>(staged.data());
#pragma omp parallel for schedule(static)
      for (std::int64_t i = 0; i < n; ++i) {
        if constexpr (std::is_same_v<T, std::int32_t>) {
          values[i] = integer_of(*pool_, operand.number_, at + i, operand.limit_);
        } else {
          const float value = pool_->at(operand.number_, at + i);
          values[i] = static_cast<T>(operand.positive_ ? std::fabs(value) : value);
        }
      }
    });
    device_->copy_from_host(
        static_cast<std::byte*>(first.data) + static_cast<std::size_t>(at) * unit, staged.data(),
        static_cast<std::size_t>(n) * unit);
  }
  for (std::size_t s = 1; s < operand.sets_.size(); ++s)
    device_->copy(operand.sets_[s].data, first.data, first.bytes());
}

std::vector<double> BenchOperands::read(const TensorView& x, std::int64_t first,
                                        std::int64_t count) const {
  const std::size_t unit = size_of(x.dtype);
  std::vector<std::byte> raw(static_cast<std::size_t>(count) * unit);
  device_->copy_to_host(
      raw.data(), static_cast<const std::byte*>(x.data) + static_cast<std::size_t>(first) * unit,
      raw.size());
  std::vector<double> values(static_cast<std::size_t>(count));
  with_stored(x.dtype, [&](auto t) {
    const auto* stored = reinterpret_cast<const decltype(t)*>(raw.data());
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = widen(stored[i]);
  });
  return values;
}

bool supports(Device& device, DType dtype) {
  try {
    const Buffer from(device, 64), to(device, 64);
    const Stream stream(device);
    device.zero(from.data(), from.bytes());
    cast(stream, {from.data(), DType::f32, {4}}, {to.data(), dtype, {4}});
    stream.synchronize();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace choir::ops
