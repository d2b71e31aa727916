#include "kernels/bench/bench_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "choir/core/error.hpp"
#include "kernels/bench/op_bench.hpp"

namespace choir::ops {
namespace {

constexpr double kRoundingsOnTheWay = 16, kProductsAGroup = 16;

/// Half the distance between neighbouring numbers at 1: the relative error of one rounding to
/// nearest.
double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-53;
    case DType::f32:
      return 0x1p-24;
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    default:
      CHOIR_CHECK(false, "{} is not rounded", name_of(dtype));
  }
}

double accumulator_roundoff(DType dtype) {
  return dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
}

}  // namespace

double allowed_error(DType dtype, double accumulated) {
  return unit_roundoff(dtype) +
         accumulator_roundoff(dtype) * (kRoundingsOnTheWay + std::sqrt(accumulated / 6));
}

double allowed_product_error(DType in, DType out, double k) {
  const double rounding = unit_roundoff(out) + accumulator_roundoff(in) * std::sqrt(k);
  const bool half = in == DType::bf16 || in == DType::f16;
  return half ? rounding + 0x1p-23 * k / kProductsAGroup : rounding;
}

void Agreement::add(const std::vector<double>& actual, const std::vector<double>& expected,
                    double allowed) {
  CHOIR_CHECK(actual.size() == expected.size(), "{} results for {} references", actual.size(),
              expected.size());
  double error = 0, size = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double difference = actual[i] - expected[i];
    error += difference * difference, size += expected[i] * expected[i];
  }
  if (error > 0) error = std::sqrt(error / size);
  // The error relative to the allowed one; NaN is the largest.
  double far = error == 0 ? 0 : error / allowed;
  if (std::isnan(error)) far = std::numeric_limits<double>::infinity();
  if (far > worst_) worst_ = far, error_ = error, allowed_ = allowed;
}

void Agreement::judge(BenchRow& row) const {
  CHOIR_CHECK(worst_ >= 0, "{}: nothing was compared", row.name);
  row.error = error_, row.allowed = allowed_;
}

std::string bench_row_header(std::size_t names) {
  return fmt::format("# {:<{}} {:<24} {:<5} {:>11} {:>15} {:>9}  {:<8} {}", "name", names, "shape",
                     "dtype", "us", "rate", "of ceil.", "error", "allowed");
}

std::string to_string(const BenchRow& row, std::size_t names) {
  const bool bytes = row.unit == BenchUnit::bytes;
  return fmt::format("  {:<{}} {:<24} {:<5} {:>11.2f} {:>8.2f} {} {:>7.1f} %  {:<8.1e} {:<8.1e} {}",
                     row.title(), names, row.shape, name_of(row.dtype), 1e6 * row.seconds,
                     row.rate() / (bytes ? 1e9 : 1e12), bytes ? "GB/s   " : "TFLOP/s",
                     100 * row.fraction(), row.error, row.allowed,
                     row.valid() ? "VALID" : "INVALID");
}

std::vector<Window> windows_of(std::int64_t rows, std::int64_t tokens) {
  constexpr std::int64_t kWhole = 1024, kCount = 48;
  const std::int64_t sequences = (rows + tokens - 1) / tokens, last = (sequences - 1) * tokens;
  std::vector<Window> windows;
  if (rows <= kWhole) {
    for (std::int64_t first = 0; first < rows; first += tokens)
      windows.push_back({first, std::min(tokens, rows - first)});
    return windows;
  }
  const std::int64_t count = std::min(kCount, tokens), end = std::min(count, rows - last);
  windows.push_back({0, count});
  if (sequences > 2) windows.push_back({sequences / 2 * tokens, count});
  windows.push_back({rows - end, end});
  return windows;
}

std::vector<Window> windows_of(std::int64_t elements) {
  constexpr std::int64_t kCount = 4096;
  if (elements <= 3 * kCount) return {{0, elements}};
  return {{0, kCount}, {elements / 2, kCount}, {elements - kCount, kCount}};
}

std::vector<BenchRow> bench_ops(Device& device, const BenchShape& shape,
                                const std::vector<DType>& types, double seconds, double ceiling) {
  CHOIR_CHECK(device.kind() != DeviceKind::null,
              "the op bench measures devices that compute, not {}", name_of(device.kind()));
  CHOIR_CHECK(shape.width % shape.head_width == 0 && shape.tokens > 0,
              "heads {} wide in rows of {}", shape.head_width, shape.width);
  if (ceiling == 0) ceiling = measure_copy(Stream(device));
  const NormalPool pool;
  std::vector<BenchRow> rows;
  for (const DType dtype : types) {
    OpBench bench(device, dtype, shape, seconds, ceiling, pool, rows);
    bench_norms(bench);
    bench_activations(bench);
    bench_tokens(bench);
    bench_ctc(bench);
    bench_features(bench);
    bench_convolutions(bench);
    bench_relative(bench);
    bench_blocks(bench);
    bench_positions(bench);
    bench_flat(bench);
  }
  return rows;
}

}  // namespace choir::ops
