#include "choir/ops/ceiling.hpp"

#include "choir/ops/bench_operands.hpp"
#include "choir/ops/gemm.hpp"
#include "choir/ops/stopwatch.hpp"

namespace choir::ops {
namespace {

constexpr int kRounds = 4;

}  // namespace

std::int64_t large_product(DeviceKind kind) {
  return kind == DeviceKind::cuda ? 8192 : 1024;
}

double measure_gemm(const Stream& stream, DType dtype, std::int64_t n) {
  if (n == 0) n = large_product(stream.kind());
  const NormalPool pool;
  BenchOperands data(stream.device(), pool);
  const Operand a = data.normal(dtype, {n, n}), b = data.normal(dtype, {n, n}),
                c = data.empty(dtype, {n, n});
  const double seconds = best_seconds(stream, kRounds, [&](std::int64_t i) {
    gemm(stream, a[i], b[i], c[i], {.transpose_b = true});
  });
  const auto extent = static_cast<double>(n);
  return 2.0 * extent * extent * extent / seconds;
}

double measure_copy(const Stream& stream, std::size_t bytes) {
  if (bytes == 0) bytes = std::size_t{stream.kind() == DeviceKind::cuda ? 1024u : 256u} << 20;
  const NormalPool pool;
  BenchOperands data(stream.device(), pool);
  const auto n = static_cast<std::int64_t>(bytes / sizeof(float));
  const Operand from = data.normal(DType::f32, {n}), to = data.empty(DType::f32, {n});
  const double seconds = best_seconds(
      stream, kRounds, [&](std::int64_t i) { stream.copy(to[i].data, from[i].data, bytes); });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

}  // namespace choir::ops
