#include "choir/ops/ceiling.hpp"

#include <algorithm>
#include <vector>

#include "choir/core/clock.hpp"
#include "choir/core/philox.hpp"
#include "choir/ops/gemm.hpp"
#include "choir/ops/reduce.hpp"

namespace choir::ops {
namespace {

/// Uniform in [-1, 1): zeros would run faster than any real data.
Buffer random_matrix(const Stream& stream, DType dtype, std::int64_t n, const char* name) {
  std::vector<float> host(static_cast<std::size_t>(n * n));
  const PhiloxKey key = philox_key(1, name);
  for (std::size_t i = 0; i < host.size(); i += 4) {
    const PhiloxBlock block = philox_at(key, i);
    for (std::size_t k = 0; k < 4 && i + k < host.size(); ++k)
      host[i + k] = static_cast<float>(2 * uniform01(block[k]) - 1);
  }
  Device& device = stream.device();
  Buffer floats(device, host.size() * sizeof(float)), matrix(device, host.size() * size_of(dtype));
  device.copy_from_host(floats.data(), host.data(), floats.bytes());
  cast(stream, {floats.data(), DType::f32, {n * n}}, {matrix.data(), dtype, {n * n}});
  return matrix;
}

template <class Work>
double best_seconds(int repeats, Work work) {
  work();
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double start = now_seconds();
    work();
    best = std::min(best, now_seconds() - start);
  }
  return best;
}

}  // namespace

double measure_gemm(const Stream& stream, DType dtype, std::int64_t n) {
  const Buffer a = random_matrix(stream, dtype, n, "a"), b = random_matrix(stream, dtype, n, "b");
  const Buffer c(stream.device(), static_cast<std::size_t>(n * n) * size_of(dtype));
  const auto matrix = [&](const Buffer& x) { return TensorView{x.data(), dtype, {n, n}}; };
  const double seconds = best_seconds(
      4, [&] { gemm(stream, matrix(a), matrix(b), matrix(c), {.transpose_b = true}); });
  return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / seconds;
}

double measure_copy(const Stream& stream, std::size_t bytes) {
  const Buffer from(stream.device(), bytes), to(stream.device(), bytes);
  stream.device().zero(from.data(), bytes);
  const double seconds =
      best_seconds(4, [&] { stream.device().copy(to.data(), from.data(), bytes); });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

}  // namespace choir::ops
