#include <fmt/core.h>

#include <algorithm>

#include "choir/lab/bench/bench_shapes.hpp"
#include "choir/ops/bench_operands.hpp"
#include "choir/ops/gemm.hpp"
#include "choir/ops/gemm_batched.hpp"
#include "choir/ops/stopwatch.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {
namespace {

/// At most 24 of n indices, spread from the first to the last.
std::vector<std::int64_t> some_of(std::int64_t n) {
  const std::int64_t count = std::min<std::int64_t>(n, 24);
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < count; ++i)
    list.push_back(count == 1 ? 0 : i * (n - 1) / (count - 1));
  return list;
}

/// Vectors of length k from a matrix that holds `extent` of them, as rows or as columns; in a
/// batch, from the last matrix.
std::vector<double> vectors_of(const ops::Operand& matrix, const std::vector<std::int64_t>& which,
                               std::int64_t extent, std::int64_t k, bool columns) {
  const std::int64_t begin = matrix[0].count() - extent * k;
  std::vector<double> values(which.size() * static_cast<std::size_t>(k));
  for (std::size_t v = 0; v < which.size(); ++v)
    for (std::int64_t p = 0; p < k; ++p)
      values[v * static_cast<std::size_t>(k) + static_cast<std::size_t>(p)] =
          matrix.exact(begin + (columns ? p * extent + which[v] : which[v] * k + p));
  return values;
}

void check(const StepGemm& g, ops::BenchOperands& data, const ops::Operand& a,
           const ops::Operand& b, const ops::Operand& c, ops::Agreement& agreement) {
  const std::vector<std::int64_t> rows = some_of(g.m), columns = some_of(g.n);
  const std::vector<double> left = vectors_of(a, rows, g.m, g.k, g.transpose_a),
                            right = vectors_of(b, columns, g.n, g.k, !g.transpose_b);
  const std::int64_t begin = (g.batch - 1) * g.m * g.n;
  std::vector<double> expected, actual;
  for (const std::int64_t i : rows) {
    const std::vector<double> line = data.read(c[0], begin + i * g.n, g.n);
    for (const std::int64_t j : columns) {
      expected.push_back(g.to_gradient ? c.exact(begin + i * g.n + j) : 0);
      actual.push_back(line[static_cast<std::size_t>(j)]);
    }
  }
  ref::gemm({.m = static_cast<std::int64_t>(rows.size()),
             .n = static_cast<std::int64_t>(columns.size()),
             .k = g.k,
             .transpose_b = true,
             .accumulate = true,
             .in = DType::f64,
             .out = DType::f64,
             .a = left.data(),
             .b = right.data(),
             .c = expected.data()});
  agreement.add(actual, expected,
                ops::allowed_product_error(a.dtype(), c.dtype(), static_cast<double>(g.k)));
}

}  // namespace

std::vector<StepGemm> square_gemms(std::int64_t largest) {
  std::vector<StepGemm> list;
  for (std::int64_t n = 1024; n <= largest; n *= 2)
    list.push_back({.name = "square", .m = n, .n = n, .k = n, .transpose_b = true, .calls = 0});
  return list;
}

std::vector<ops::BenchRow> bench_gemms(Device& device, const std::vector<StepGemm>& gemms,
                                       const Precision& precision, double ceiling, double seconds) {
  const ops::NormalPool pool;
  const Stream stream(device);
  std::vector<ops::BenchRow> rows;
  for (const StepGemm& g : gemms) {
    ops::BenchOperands data(device, pool);
    const auto matrices = [&](std::int64_t rows_of, std::int64_t columns, bool transposed) {
      if (transposed) std::swap(rows_of, columns);
      return g.batch > 1 ? Shape{g.batch, rows_of, columns} : Shape{rows_of, columns};
    };
    const ops::Operand a = data.normal(precision.compute, matrices(g.m, g.k, g.transpose_a));
    const ops::Operand b = data.normal(precision.compute, matrices(g.k, g.n, g.transpose_b));
    const ops::Operand c = data.normal(g.to_gradient ? precision.gradient : precision.compute,
                                       matrices(g.m, g.n, false));
    const auto call = [&](std::int64_t i) {
      if (g.batch > 1)
        return ops::gemm_batched(stream, a[i], b[i], c[i],
                                 {.transpose_a = g.transpose_a, .transpose_b = g.transpose_b});
      ops::gemm(stream, a[i], b[i], c[i],
                {.transpose_a = g.transpose_a,
                 .transpose_b = g.transpose_b,
                 .accumulate = g.to_gradient});
    };
    call(0);
    ops::Agreement agreement;
    check(g, data, a, b, c, agreement);
    ops::BenchRow row{.name = g.name,
                      .shape = g.batch > 1
                                   ? fmt::format("{} of {} x {} x {}", g.batch, g.m, g.n, g.k)
                                   : fmt::format("{} x {} x {}", g.m, g.n, g.k),
                      .dtype = precision.compute,
                      .unit = ops::BenchUnit::flops,
                      .seconds = ops::median_seconds(stream, seconds, call),
                      .work = g.flops(),
                      .ceiling = ceiling,
                      .calls = g.calls};
    agreement.judge(row);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace choir
