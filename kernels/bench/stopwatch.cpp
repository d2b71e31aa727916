#include "kernels/bench/op_bench.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/bench/bench_operands.hpp"
#include "kernels/gemm/gemm.hpp"
#include "src/core/quantities.hpp"
#include "src/core/stats.hpp"

namespace choir::ops {
namespace {

constexpr std::size_t kLeastMeasurements = 5, kMostMeasurements = 10000;
/// Minimum length of a batch on cuda: launches of its first calls are hidden behind it, and the
/// half microsecond of an event's resolution is negligible.
constexpr double kBatchSeconds = 2e-3;
constexpr std::int64_t kMostCallsInABatch = 256;

/// Measures `calls` calls between two events; the first call has number `first`.
double measure(const Stream& stream, std::int64_t first, std::int64_t calls, const TimedCall& call,
               const TimedCall& before) {
  Event start(stream.device()), end(stream.device());
  if (before) before(first);
  start.record_time(stream);
  for (std::int64_t i = first; i < first + calls; ++i) call(i);
  end.record_time(stream);
  end.synchronize();
  return end.seconds_since(start) / static_cast<double>(calls);
}

std::int64_t calls_in_a_batch(const Stream& stream, double one, const TimedCall& before) {
  if (stream.kind() != DeviceKind::cuda || before) return 1;
  const double wanted = std::ceil(kBatchSeconds / std::max(one, 1e-7));
  return std::clamp(static_cast<std::int64_t>(wanted), std::int64_t{1}, kMostCallsInABatch);
}

}  // namespace

double median_seconds(const Stream& stream, double seconds, const TimedCall& call,
                      const TimedCall& before) {
  std::int64_t done = 0;
  const auto batch = [&](std::int64_t calls) {
    const double each = measure(stream, done, calls, call, before);
    done += calls;
    return each;
  };
  batch(1);  // plans are made and pages touched
  const std::int64_t calls = calls_in_a_batch(stream, batch(1), before);
  std::vector<double> times;
  for (const double start = now_seconds();
       times.size() < kLeastMeasurements ||
       (now_seconds() - start < seconds && times.size() < kMostMeasurements);)
    times.push_back(batch(calls));
  return median_of(std::move(times));
}

double best_seconds(const Stream& stream, int rounds, const TimedCall& call) {
  measure(stream, 0, 1, call, {});
  double best = std::numeric_limits<double>::infinity();
  for (int i = 1; i <= rounds; ++i) best = std::min(best, measure(stream, i, 1, call, {}));
  return best;
}

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
