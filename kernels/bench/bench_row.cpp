#include "choir/ops/bench_row.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "choir/core/error.hpp"

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
                     "dtype", "us", "rate", "of ceil.", "error", "of allowed");
}

std::string to_string(const BenchRow& row, std::size_t names) {
  const bool bytes = row.unit == BenchUnit::bytes;
  return fmt::format("  {:<{}} {:<24} {:<5} {:>11.2f} {:>8.2f} {} {:>7.1f} %  {:<8.1e} {:<8.1e} {}",
                     row.title(), names, row.shape, name_of(row.dtype), 1e6 * row.seconds,
                     row.rate() / (bytes ? 1e9 : 1e12), bytes ? "GB/s   " : "TFLOP/s",
                     100 * row.fraction(), row.error, row.allowed,
                     row.valid() ? "VALID" : "INVALID");
}

}  // namespace choir::ops
