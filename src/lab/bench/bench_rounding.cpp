#include "src/lab/bench/bench_step.hpp"

#include <cmath>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "src/train/step/train_checkpoint.hpp"

namespace choir {
namespace {

int digits_of(DType type) {
  switch (type) {
    case DType::f64:
      return 53;
    case DType::f32:
      return 24;
    case DType::f16:
      return 11;
    default:
      return 8;  // bf16
  }
}

template <class T>
void move(const TensorView& values, PhiloxKey key, int digits) {
  auto* list = static_cast<T*>(values.data);
  const std::int64_t n = values.count();
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < n; ++i) {
    const bool up = (philox_at(key, static_cast<std::uint64_t>(i))[0] & 1u) != 0;
    if constexpr (sizeof(T) == 2) {  // a float can hold one place more
      const double value = static_cast<float>(list[i]);
      list[i] = T(static_cast<float>(moved_last_place(value, up, digits)));
    } else {
      list[i] = static_cast<T>(moved_last_place(list[i], up, digits));
    }
  }
}

void move_any(const TensorView& values, PhiloxKey key, int digits) {
  switch (values.dtype) {
    case DType::f64:
      return move<double>(values, key, digits);
    case DType::f32:
      return move<float>(values, key, digits);
    case DType::bf16:
      return move<bf16>(values, key, digits);
    default:
      return move<f16>(values, key, digits);
  }
}

template <class T>
double sum_of_squares(const void* data, std::int64_t count) {
  const auto* values = static_cast<const T*>(data);
  double sum = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i)
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

double sum_of_squares(const StoredTensor& tensor) {
  double sum = 0;
  std::vector<std::byte> copy;
  for (const StoredPiece& piece : tensor.pieces) {
    const void* data = piece.data;
    if (tensor.device != nullptr && !tensor.device->host_visible()) {
      copy.resize(static_cast<std::size_t>(piece.count) * size_of(tensor.dtype));
      tensor.device->copy_to_host(copy.data(), data, copy.size());
      data = copy.data();
    }
    sum += tensor.dtype == DType::f64 ? sum_of_squares<double>(data, piece.count)
                                      : sum_of_squares<float>(data, piece.count);
  }
  return sum;
}

}  // namespace

double moved_last_place(double value, bool up, int digits) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double place = std::ldexp(1, std::ilogb(value) + 1 - digits);
  return std::copysign(std::abs(value) + (up ? place : -place), value);
}

void move_last_places(ModelInstance& instance, std::uint64_t seed) {
  ParameterStorage& storage = instance.storage();
  const Device& device = instance.device();
  const int digits = digits_of(storage.precision().compute);
  std::vector<std::byte> host;
  for (const Parameter& p : storage.parameters().parameters()) {
    const Bucket& bucket = storage.bucket_of(p);
    const TensorView masters = storage.owned_part(storage.masters(bucket), p);
    if (masters.count() == 0) continue;
    const PhiloxKey key = philox_key(seed, "last place " + p.name);
    if (storage.masters_outside(bucket) || device.host_visible()) {
      move_any(masters, key, digits);
      continue;
    }
    host.resize(masters.bytes());
    instance.device().copy_to_host(host.data(), masters.data, host.size());
    move_any({host.data(), masters.dtype, masters.shape}, key, digits);
    instance.device().copy_from_host(masters.data, host.data(), host.size());
  }
  instance.publish();
}

std::map<std::string, double> gradient_norms(Engine& engine) {
  std::vector<std::string> names;
  std::vector<double> squares;
  for (const StoredTensor& tensor : gradient_tensors(engine, true)) {
    names.push_back(tensor.name);
    squares.push_back(sum_of_squares(tensor));
  }
  engine.mesh().world().all_reduce(squares.data(), squares.size(), DType::f64, ReduceOp::sum);
  std::map<std::string, double> norms;
  for (std::size_t i = 0; i < names.size(); ++i) norms[names[i]] = std::sqrt(squares[i]);
  return norms;
}

}  // namespace choir
