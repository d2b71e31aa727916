// Timing and checks of single matrix products and attention calls.

#include "src/lab/bench/bench_shapes.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/attention/attention.hpp"
#include "kernels/bench/bench_operands.hpp"
#include "kernels/bench/op_bench.hpp"
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
  WorkCounter work;
  const Stream stream(device, &work);
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
    work = {};
    call(0);
    const double bytes = work.bytes;
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
                      .other = bytes,
                      .ceiling = ceiling,
                      .calls = g.calls};
    agreement.judge(row);
    rows.push_back(row);
  }
  return rows;
}

namespace {

using Problem = ops::AttentionProblem;

using ops::AttentionImplementation;

/// The implementations to compare, by name: those of the device, or the requested one.
std::vector<std::pair<std::string, Problem>> ways_of(Problem problem, DeviceKind kind,
                                                     AttentionImplementation which) {
  std::vector<std::pair<std::string, Problem>> ways;
  const auto add = [&](const char* name, AttentionImplementation implementation) {
    if (which != AttentionImplementation::automatic && which != implementation) return;
    problem.implementation = implementation;
    ways.emplace_back(name, problem);
  };
  add("own", AttentionImplementation::own);
  if (kind == DeviceKind::cuda) add("cudnn", AttentionImplementation::cudnn);
  return ways;
}

/// Operands of one shape. Each token has one packed projection, as in the model: [q | k | v].
struct Tensors {
  Tensors(ops::BenchOperands& data, const AttentionShape& s, DType t)
      : width((s.heads + 2 * s.kv_heads) * s.head_width),
        features(s.heads * s.head_width),
        rows(s.batch * s.tokens),
        qkv(data.normal(t, {rows, width})),
        d_out(data.normal(t, {rows, features})),
        some_d_out(data.empty(t, {rows, features})),
        out(data.empty(t, {rows, features})),
        d_qkv(data.empty(t, {rows, width})),
        sums(data.empty(t == DType::f64 ? DType::f64 : DType::f32, {s.batch, s.heads, s.tokens})) {}
  std::int64_t width, features, rows;
  ops::Operand qkv, d_out, some_d_out, out, d_qkv, sums;
};

ops::AttentionOperand heads_of(const TensorView& packed, std::int64_t tokens, std::int64_t first) {
  const std::int64_t width = packed.shape.back();
  auto* data = static_cast<std::byte*>(packed.data) +
               static_cast<std::size_t>(first) * size_of(packed.dtype);
  return {.data = data, .batch_stride = tokens * width, .position_stride = width};
}

ops::AttentionForward forward_of(const Problem& p, const Tensors& x, const TensorView& workspace) {
  const std::int64_t keys_at = p.heads * p.head_width,
                     values_at = keys_at + p.kv_heads * p.head_width;
  return {.problem = p,
          .q = heads_of(x.qkv[0], p.queries, 0),
          .k = heads_of(x.qkv[0], p.queries, keys_at),
          .v = heads_of(x.qkv[0], p.queries, values_at),
          .out = heads_of(x.out[0], p.queries, 0),
          .log_sum_exp = x.sums[0],
          .workspace = workspace};
}

ops::AttentionBackward backward_of(const Problem& p, const Tensors& x, const TensorView& d_out,
                                   const TensorView& workspace) {
  const ops::AttentionForward f = forward_of(p, x, workspace);
  const std::int64_t keys_at = p.heads * p.head_width,
                     values_at = keys_at + p.kv_heads * p.head_width;
  return {.problem = p,
          .q = f.q,
          .k = f.k,
          .v = f.v,
          .out = f.out,
          .d_out = heads_of(d_out, p.queries, 0),
          .log_sum_exp = f.log_sum_exp,
          .d_q = heads_of(x.d_qkv[0], p.queries, 0),
          .d_k = heads_of(x.d_qkv[0], p.queries, keys_at),
          .d_v = heads_of(x.d_qkv[0], p.queries, values_at),
          .workspace = workspace};
}

/// Queries [first, first + count).
struct Window {
  std::int64_t first = 0, count = 0;
};

std::vector<Window> windows_of(std::int64_t tokens) {
  constexpr std::int64_t kWhole = 256, kCount = 16;
  if (tokens <= kWhole) return {{0, tokens}};
  return {{0, kCount}, {tokens / 2, kCount}, {tokens - kCount, kCount}};
}

/// The fp64 results of the query heads that share the last K/V head of the last sample.
class Reference {
 public:
  Reference(const AttentionShape& shape, const Tensors& x)
      : s_(shape),
        group_(s_.heads / s_.kv_heads),
        q_(part(x.qkv, (s_.heads - group_) * s_.head_width, group_ * s_.head_width)),
        k_(part(x.qkv, (s_.heads + s_.kv_heads - 1) * s_.head_width, s_.head_width)),
        v_(part(x.qkv, (s_.heads + 2 * s_.kv_heads - 1) * s_.head_width, s_.head_width)),
        d_out_(part(x.d_out, (s_.heads - group_) * s_.head_width, group_ * s_.head_width)),
        windows_(windows_of(s_.tokens)),
        results_(windows_.size()) {
#pragma omp parallel for schedule(dynamic)
    for (std::size_t w = 0; w < windows_.size(); ++w) results_[w] = compute(windows_[w]);
  }

  void judge_forward(const ops::BenchOperands& data, const Tensors& x,
                     ops::Agreement& agreement) const {
    const DType t = x.qkv.dtype();
    for (std::size_t w = 0; w < windows_.size(); ++w)
      agreement.add(read(data, x.out[0], windows_[w], (s_.heads - group_) * s_.head_width,
                         group_ * s_.head_width),
                    results_[w].out, allowed(t, 2));
  }
  /// The backward pass is the one of some_d_out: d_out in the windows and zero elsewhere.
  void judge_backward(const ops::BenchOperands& data, const Tensors& x,
                      ops::Agreement& agreement) const {
    const DType t = x.qkv.dtype();
    const std::int64_t d = s_.head_width;
    std::vector<double> d_k(k_.size()), d_v(v_.size());
    for (std::size_t w = 0; w < windows_.size(); ++w) {
      agreement.add(read(data, x.d_qkv[0], windows_[w], (s_.heads - group_) * d, group_ * d),
                    results_[w].d_q, allowed(t, 4));
      for (std::size_t i = 0; i < results_[w].d_k.size(); ++i)
        d_k[i] += results_[w].d_k[i], d_v[i] += results_[w].d_v[i];
    }
    const Window all{0, s_.tokens};
    agreement.add(read(data, x.d_qkv[0], all, (s_.heads + s_.kv_heads - 1) * d, d), d_k,
                  allowed(t, 4));
    agreement.add(read(data, x.d_qkv[0], all, (s_.heads + 2 * s_.kv_heads - 1) * d, d), d_v,
                  allowed(t, 2));
  }
  const std::vector<Window>& windows() const {
    return windows_;
  }

 private:
  struct Result {
    std::vector<double> out, d_q, d_k, d_v;
  };

  /// The result contains `roundings` roundings to the compute type: forward the probabilities and
  /// the result; backward also the output in the row sums and the score gradients.
  double allowed(DType t, int roundings) const {
    return (roundings - 1) * ops::allowed_product_error(t, t, static_cast<double>(s_.head_width)) +
           ops::allowed_product_error(t, t, static_cast<double>(s_.tokens)) +
           ops::allowed_error(DType::f32, 0);
  }
  std::int64_t first_row() const {
    return (s_.batch - 1) * s_.tokens;
  }
  std::vector<double> part(const ops::Operand& packed, std::int64_t from,
                           std::int64_t count) const {
    const std::int64_t width = packed[0].shape.back();
    std::vector<double> values(static_cast<std::size_t>(s_.tokens * count));
    for (std::int64_t t = 0; t < s_.tokens; ++t)
      for (std::int64_t c = 0; c < count; ++c)
        values[static_cast<std::size_t>(t * count + c)] =
            packed.exact((first_row() + t) * width + from + c);
    return values;
  }
  std::vector<double> read(const ops::BenchOperands& data, const TensorView& packed, Window w,
                           std::int64_t from, std::int64_t count) const {
    const std::int64_t width = packed.shape.back();
    const std::vector<double> rows =
        data.read(packed, (first_row() + w.first) * width, w.count * width);
    std::vector<double> values;
    for (std::int64_t t = 0; t < w.count; ++t)
      values.insert(values.end(), rows.begin() + t * width + from,
                    rows.begin() + t * width + from + count);
    return values;
  }
  Result compute(Window w) {
    const std::int64_t keys = s_.causal ? w.first + w.count : s_.tokens, d = s_.head_width;
    const auto rows_of = [&](std::vector<double>& values, std::int64_t first, std::int64_t width) {
      return ops::AttentionOperand{values.data() + first * width, 0, width};
    };
    Result r;
    r.out.resize(static_cast<std::size_t>(w.count * group_ * d));
    r.d_q.resize(r.out.size());
    r.d_k.resize(static_cast<std::size_t>(keys * d)), r.d_v.resize(r.d_k.size());
    ops::AttentionForward f;
    f.problem = {.batch = 1,
                 .heads = group_,
                 .kv_heads = 1,
                 .head_width = d,
                 .queries = w.count,
                 .keys = keys,
                 .causal = s_.causal,
                 .scale = 1 / std::sqrt(static_cast<double>(d)),
                 .dtype = DType::f64};
    f.q = rows_of(q_, w.first, group_ * d), f.k = rows_of(k_, 0, d), f.v = rows_of(v_, 0, d);
    f.out = rows_of(r.out, 0, group_ * d);
    ref::attention_forward(f);
    ops::AttentionBackward b;
    b.problem = f.problem;
    b.q = f.q, b.k = f.k, b.v = f.v, b.out = f.out;
    b.d_out = rows_of(d_out_, w.first, group_ * d);
    b.d_q = rows_of(r.d_q, 0, group_ * d), b.d_k = rows_of(r.d_k, 0, d);
    b.d_v = rows_of(r.d_v, 0, d);
    ref::attention_backward(b);
    return r;
  }

  AttentionShape s_;
  std::int64_t group_;
  std::vector<double> q_, k_, v_, d_out_;
  std::vector<Window> windows_;
  std::vector<Result> results_;
};

/// Fills some_d_out: d_out in the windows of the last sample, zero elsewhere.
void fill_some(const Stream& stream, const Tensors& x, const AttentionShape& s,
               const std::vector<Window>& windows) {
  const TensorView to = x.some_d_out[0], from = x.d_out[0];
  stream.zero(to.data, to.bytes());
  const std::size_t row = static_cast<std::size_t>(x.features) * size_of(to.dtype);
  for (const Window w : windows) {
    const std::size_t at = static_cast<std::size_t>((s.batch - 1) * s.tokens + w.first) * row;
    stream.copy(static_cast<std::byte*>(to.data) + at, static_cast<std::byte*>(from.data) + at,
                static_cast<std::size_t>(w.count) * row);
  }
}

struct Setting {
  const Stream& stream;
  ops::BenchOperands& data;
  const AttentionShape& shape;
  const Tensors& tensors;
  const Reference& reference;
  double ceiling, seconds;
};

/// Times forward and backward of one implementation.
std::vector<ops::BenchRow> rows_of(const Setting& s, const Problem& problem,
                                   const std::string& variant) {
  const auto scratch = [&](bool backward) {
    return s.data.empty(DType::u8, {std::max<std::int64_t>(
                                       1, ops::attention_workspace(s.stream, problem, backward))});
  };
  const ops::Operand forward_space = scratch(false), backward_space = scratch(true);
  const ops::AttentionForward forward = forward_of(problem, s.tensors, forward_space[0]);
  const auto backward = [&](const ops::Operand& d_out) {
    return backward_of(problem, s.tensors, d_out[0], backward_space[0]);
  };
  WorkCounter work;
  const Stream counted(s.stream.device(), s.stream.native(), &work);
  const auto row = [&](const char* name, bool is_backward, double bytes,
                       const ops::Agreement& agreement, const ops::TimedCall& call) {
    ops::BenchRow r{.name = name,
                    .variant = variant,
                    .shape = fmt::format("B {} H {}/{} T {} D {} {}", s.shape.batch, s.shape.heads,
                                         s.shape.kv_heads, s.shape.tokens, s.shape.head_width,
                                         s.shape.causal ? "causal" : "full"),
                    .dtype = problem.dtype,
                    .unit = ops::BenchUnit::flops,
                    .seconds = ops::median_seconds(s.stream, s.seconds, call),
                    .work = s.shape.flops(is_backward),
                    .other = bytes,
                    .ceiling = s.ceiling,
                    .calls = s.shape.calls};
    agreement.judge(r);
    return r;
  };
  ops::Agreement up, down;
  ops::attention_forward(counted, forward);
  const double forward_bytes = work.bytes;
  s.reference.judge_forward(s.data, s.tensors, up);
  ops::attention_backward(counted, backward(s.tensors.some_d_out));
  const double backward_bytes = work.bytes - forward_bytes;
  s.reference.judge_backward(s.data, s.tensors, down);
  return {row("attention forward", false, forward_bytes, up,
              [&](std::int64_t) { ops::attention_forward(s.stream, forward); }),
          row("attention backward", true, backward_bytes, down,
              [&](std::int64_t) { ops::attention_backward(s.stream, backward(s.tensors.d_out)); })};
}

}  // namespace

double AttentionShape::flops(bool backward) const {
  const double square = static_cast<double>(tokens) * static_cast<double>(tokens);
  return 4 * square * static_cast<double>(head_width * heads * batch) * (causal ? 0.5 : 1) *
         (backward ? 2.5 : 1);
}

std::vector<AttentionShape> attention_series(std::int64_t longest, std::int64_t tokens,
                                             std::int64_t width) {
  std::vector<AttentionShape> list;
  for (const std::int64_t d : {32, 64, 128, 256})
    for (const bool causal : {true, false})
      for (std::int64_t t = 64; t <= longest && d <= width; t *= 4)
        list.push_back(
            {std::max<std::int64_t>(1, tokens / t), width / d, width / d, d, t, causal, 0});
  return list;
}

AttentionBench bench_attention(Device& device, const std::vector<AttentionShape>& shapes,
                               DType dtype, ops::AttentionImplementation which, double ceiling,
                               double seconds) {
  const ops::NormalPool pool;
  const Stream stream(device);
  AttentionBench bench;
  for (const AttentionShape& shape : shapes) {
    ops::BenchOperands data(device, pool);
    const Tensors tensors(data, shape, dtype);
    const Reference reference(shape, tensors);
    fill_some(stream, tensors, shape, reference.windows());
    const Problem problem{.batch = shape.batch,
                          .heads = shape.heads,
                          .kv_heads = shape.kv_heads,
                          .head_width = shape.head_width,
                          .queries = shape.tokens,
                          .keys = shape.tokens,
                          .causal = shape.causal,
                          .scale = 1 / std::sqrt(static_cast<double>(shape.head_width)),
                          .dtype = dtype};
    const Setting setting{stream, data, shape, tensors, reference, ceiling, seconds};
    for (const auto& [name, way] : ways_of(problem, device.kind(), which)) {
      try {
        for (ops::BenchRow& row : rows_of(setting, way, name)) bench.rows.push_back(std::move(row));
      } catch (const Error& error) {
        if (name == "own") throw;  // our implementation supports every shape
        bench.remarks.push_back(fmt::format("{} at T {} D {} {}: {}", name, shape.tokens,
                                            shape.head_width, name_of(dtype), error.what()));
      }
    }
  }
  return bench;
}

}  // namespace choir
