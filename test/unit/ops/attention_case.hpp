#pragma once
// One attention problem with its tensors, run by a kernel or by the reference, and the allowed
// distance between the two.

#include <array>
#include <string>

#include "kernels/attention/attention.hpp"
#include "test/support/op_test.hpp"

namespace choir {

/// One value per (sample, head, query, key); the same matrix for all samples and heads; or a view
/// of rows of Tq + Tk - 1 values that starts one value earlier with every query (Transformer-XL).
enum class BiasKind { none, full, shared, shifted };

struct AttentionCase {
  std::int64_t batch = 2, heads = 2, kv_heads = 2, width = 32, queries = 64, keys = 64;
  bool causal = true;
  DType dtype = DType::f32;
  std::vector<std::int32_t> lengths{};
  BiasKind bias = BiasKind::none;
  std::int64_t window = 0;
  std::vector<std::int32_t> begins{};  ///< start of the document of each position, for every sample
  double softcap = 0;
};

/// Documents that begin at `starts` in every sample except the last, which is one document.
inline std::vector<std::int32_t> documents(std::int64_t batch, std::int64_t keys,
                                           const std::vector<std::int64_t>& starts) {
  std::vector<std::int32_t> begins;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t j = 0; j < keys; ++j) {
      std::int64_t begin = 0;
      for (const std::int64_t start : starts)
        if (start <= j && b + 1 < batch) begin = start;
      begins.push_back(static_cast<std::int32_t>(begin));
    }
  return begins;
}

inline std::string name_of(const AttentionCase& c) {
  return fmt::format(
      "{} B{} H{}/{} D{} Tq{} Tk{}{}{}{}{}{}{}", name_of(c.dtype), c.batch, c.heads, c.kv_heads,
      c.width, c.queries, c.keys, c.causal ? " causal" : "", c.lengths.empty() ? "" : " lengths",
      std::array{"", " bias", " shared bias", " shifted bias"}[static_cast<std::size_t>(c.bias)],
      c.window > 0 ? fmt::format(" window {}", c.window) : "",
      c.begins.empty() ? "" : fmt::format(" documents to {}", c.begins.back()),
      c.softcap > 0 ? fmt::format(" soft cap {}", c.softcap) : "");
}

/// Memory of the tensors of a case: host memory, or copies on a device.
struct AttentionMemory {
  void *q, *kv, *bias, *out, *log_sum_exp, *d_out, *d_q, *d_kv, *d_bias;
  const std::int32_t* lengths;
  const std::int32_t* begins;
};

/// Q, K and V inside one packed tensor if Tq = Tk; otherwise K and V are in a cache with spare
/// room.
class AttentionTensors {
 public:
  AttentionTensors(const AttentionCase& c, std::uint64_t seed) : c_(c) {
    packed_ = c.queries == c.keys;
    capacity_ = packed_ ? c.keys : c.keys + 3;
    const Shape q_shape{c.batch, c.queries, (c.heads + (packed_ ? 2 * c.kv_heads : 0)) * c.width};
    const Shape kv_shape{c.batch, capacity_, 2 * c.kv_heads * c.width};
    q = HostTensor::normal(c.dtype, q_shape, seed);
    d_q = HostTensor(c.dtype, q_shape);
    if (!packed_) {
      kv = HostTensor::normal(c.dtype, kv_shape, seed + 1);
      d_kv = HostTensor(c.dtype, kv_shape);
    }
    out = HostTensor(c.dtype, {c.batch, c.queries, c.heads * c.width});
    d_out = HostTensor::normal(c.dtype, out.shape(), seed + 2);
    log_sum_exp = HostTensor(sum_dtype(c.dtype), {c.batch, c.heads, c.queries});
    if (c.bias == BiasKind::none) return;
    bias = HostTensor::normal(c.dtype, bias_shape(), seed + 3);
    d_bias = HostTensor(c.dtype, {c.batch, c.heads, c.queries, c.keys});
  }
  /// The same numbers in f64, with poisoned outputs.
  AttentionTensors exact() const {
    AttentionTensors t = *this;
    t.c_.dtype = DType::f64;
    for (HostTensor* x :
         {&t.q, &t.kv, &t.bias, &t.d_out, &t.out, &t.d_q, &t.d_kv, &t.d_bias, &t.log_sum_exp})
      *x = x->to(DType::f64);
    return t;
  }

  AttentionMemory host() const {
    return {q.data(),           kv.data(),
            bias.data(),        out.data(),
            log_sum_exp.data(), d_out.data(),
            d_q.data(),         d_kv.data(),
            d_bias.data(),      c_.lengths.empty() ? nullptr : c_.lengths.data(),
            c_.begins.data()};
  }
  ops::AttentionProblem problem(const std::int32_t* lengths, const std::int32_t* begins) const {
    return {.batch = c_.batch,
            .heads = c_.heads,
            .kv_heads = c_.kv_heads,
            .head_width = c_.width,
            .queries = c_.queries,
            .keys = c_.keys,
            .causal = c_.causal,
            .window = c_.window,
            .scale = 1.0 / std::sqrt(static_cast<double>(c_.width)),
            .softcap = c_.softcap,
            .dtype = c_.dtype,
            .lengths = lengths,
            .positions = std::ssize(c_.begins) / c_.batch,
            .begins = begins,
            .biased = c_.bias != BiasKind::none};
  }
  ops::AttentionProblem problem() const { return problem(host().lengths, host().begins); }
  ops::AttentionForward forward(const AttentionMemory& at) const {
    return {.problem = problem(at.lengths, at.begins),
            .q = of_q(at.q),
            .k = of_k(at.q, at.kv),
            .v = of_v(at.q, at.kv),
            .out = of_out(at.out),
            .log_sum_exp = {at.log_sum_exp, log_sum_exp.dtype(), log_sum_exp.shape()},
            .workspace = {},
            .bias = of_bias(at.bias)};
  }
  ops::AttentionForward forward() const { return forward(host()); }
  ops::AttentionBackward backward(const AttentionMemory& at) const {
    ops::AttentionBackward args{
        .problem = problem(at.lengths, at.begins),
        .q = of_q(at.q),
        .k = of_k(at.q, at.kv),
        .v = of_v(at.q, at.kv),
        .out = of_out(at.out),
        .d_out = of_out(at.d_out),
        .log_sum_exp = {at.log_sum_exp, log_sum_exp.dtype(), log_sum_exp.shape()},
        .d_q = of_q(at.d_q),
        .d_k = of_k(at.d_q, at.d_kv),
        .d_v = of_v(at.d_q, at.d_kv),
        .workspace = {},
        .bias = of_bias(at.bias),
        .d_bias = {}};
    if (d_bias.count() > 0) args.d_bias = {at.d_bias, d_bias.dtype(), d_bias.shape()};
    return args;
  }
  ops::AttentionBackward backward() const { return backward(host()); }

  /// Gradient of the stored bias: d_bias summed over the positions that read the same value.
  HostTensor stored_bias_gradient() const {
    HostTensor sum = HostTensor::filled(DType::f64, bias.shape(), 0);
    const ops::AttentionBias where = of_bias(nullptr);
    std::int64_t at = 0;
    for (std::int64_t b = 0; b < c_.batch; ++b)
      for (std::int64_t h = 0; h < c_.heads; ++h)
        for (std::int64_t t = 0; t < c_.queries; ++t)
          for (std::int64_t j = 0; j < c_.keys; ++j, ++at) {
            const std::int64_t to = bias_start() + b * where.batch_stride + h * where.head_stride +
                                    t * where.query_stride + j;
            sum.set(to, sum[to] + d_bias[at]);
          }
    return sum;
  }

  HostTensor q, kv, bias, out, log_sum_exp, d_out, d_q, d_kv, d_bias;

 private:
  std::int64_t q_row() const { return q.shape().back(); }
  std::int64_t kv_row() const { return 2 * c_.kv_heads * c_.width; }
  std::int64_t bias_row() const { return c_.queries + c_.keys - 1; }
  std::int64_t bias_start() const { return c_.bias == BiasKind::shifted ? c_.queries - 1 : 0; }
  Shape bias_shape() const {
    if (c_.bias == BiasKind::shared) return {c_.queries, c_.keys};
    return {c_.batch, c_.heads, c_.queries, c_.bias == BiasKind::shifted ? bias_row() : c_.keys};
  }
  void* shifted(void* data, std::int64_t elements) const {
    return static_cast<char*>(data) + elements * static_cast<std::int64_t>(size_of(c_.dtype));
  }
  ops::AttentionBias of_bias(void* data) const {
    const std::int64_t matrix = c_.queries * (c_.bias == BiasKind::shifted ? bias_row() : c_.keys);
    switch (c_.bias) {
      case BiasKind::none:
        return {};
      case BiasKind::shared:
        return {data, 0, 0, c_.keys};
      case BiasKind::full:
        return {data, c_.heads * matrix, matrix, c_.keys};
      case BiasKind::shifted:
        return {shifted(data, bias_start()), c_.heads * matrix, matrix, bias_row() - 1};
    }
    return {};
  }
  ops::AttentionOperand of_q(void* data) const { return {data, c_.queries * q_row(), q_row()}; }
  ops::AttentionOperand of_k(void* pack, void* cache) const {
    if (packed_) return {shifted(pack, c_.heads * c_.width), c_.queries * q_row(), q_row()};
    return {cache, capacity_ * kv_row(), kv_row()};
  }
  ops::AttentionOperand of_v(void* pack, void* cache) const {
    if (packed_)
      return {shifted(pack, (c_.heads + c_.kv_heads) * c_.width), c_.queries * q_row(), q_row()};
    return {shifted(cache, c_.kv_heads * c_.width), capacity_ * kv_row(), kv_row()};
  }
  ops::AttentionOperand of_out(void* data) const {
    return {data, c_.queries * c_.heads * c_.width, c_.heads * c_.width};
  }

  AttentionCase c_;
  bool packed_;
  std::int64_t capacity_;
};

/// Scores are sums of D products (error u sqrt(D) each); outputs are averages over up to Tk of
/// them. A bf16 kernel with tiles rounds P and dS as operands, and every kernel reads the stored
/// `out` for delta: errors of one unit of the storage type relative to terms of order one, which
/// add in quadrature.
struct AttentionTolerance {
  explicit AttentionTolerance(const AttentionCase& c) {
    const double u = unit_roundoff(sum_dtype(c.dtype));
    const double length = static_cast<double>(std::max(c.keys, c.queries));
    sums = 4 * u * (8 + std::sqrt(static_cast<double>(c.width)) + std::sqrt(length));
    stored = size_of(c.dtype) == 2 ? unit_roundoff(c.dtype) : 0;
  }
  double sums, stored;
};

/// Checks ||a - b|| <= limit ||b|| over elements that the reference wrote, plus `absolute` per
/// element if terms may cancel; the others must stay untouched (NaN).
inline void expect_norm(const HostTensor& a, const HostTensor& b, double limit,
                        const std::string& what, double absolute = 0) {
  double error = 0, size = 0;
  for (std::int64_t i = 0; i < a.count(); ++i) {
    if (std::isnan(b[i])) {
      EXPECT_TRUE(std::isnan(a[i])) << what << ": wrote element " << i;
      continue;
    }
    error += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  }
  const double floor = absolute * std::sqrt(static_cast<double>(a.count()));
  EXPECT_LE(std::sqrt(error), limit * std::sqrt(size) + floor + 1e-300) << what;
}

inline void compare_lse(const HostTensor& actual, const HostTensor& expected, double tolerance,
                        const std::string& what) {
  for (std::int64_t i = 0; i < actual.count(); ++i) {
    if (std::isinf(expected[i]))
      EXPECT_EQ(actual[i], expected[i]) << what;
    else
      EXPECT_NEAR(actual[i], expected[i], tolerance * (1 + std::fabs(expected[i]))) << what;
  }
}

inline void run_forward(AttentionKernel kernel, const AttentionTensors& t, int threads = 2) {
  ops::AttentionForward args = t.forward();
  const HostTensor workspace(DType::u8,
                             {attention_workspace_cpu(kernel, args.problem, false, threads)});
  args.workspace = workspace;
  attention_forward_cpu(kernel, args, threads);
  EXPECT_TRUE(workspace.guard_intact() && t.out.guard_intact() && t.log_sum_exp.guard_intact());
}

inline void run_backward(AttentionKernel kernel, const AttentionTensors& t, int threads = 2) {
  ops::AttentionBackward args = t.backward();
  const HostTensor workspace(DType::u8,
                             {attention_workspace_cpu(kernel, args.problem, true, threads)});
  args.workspace = workspace;
  attention_backward_cpu(kernel, args, threads);
  EXPECT_TRUE(workspace.guard_intact() && t.d_q.guard_intact() && t.d_kv.guard_intact() &&
              t.d_bias.guard_intact());
}

}  // namespace choir
