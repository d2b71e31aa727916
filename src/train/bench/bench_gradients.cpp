#include "src/train/bench/bench_gradients.hpp"

#include <cmath>
#include <vector>

#include "choir/train/save/train_checkpoint.hpp"

namespace choir {
namespace {

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
