// Benches of relative-position attention, against its references: positions, queries with their two
// biases, the shift and the mask of scores, and attention with the shifted scores as its bias.
// Attention reads as many scores as it computes, 2 T a query, so memory bounds it, not products.
#include <cmath>
#include <limits>

#include "kernels/attention/attention.hpp"
#include "kernels/bench/op_bench.hpp"
#include "kernels/relative_attention/relative_attention.hpp"

namespace choir::ops {
namespace {

constexpr double kScale = 0.125;

/// A micro-batch after subsampling by 8.
struct RelativeShape {
  std::int64_t batch, heads, tokens, head_width;
  std::int64_t width() const { return heads * head_width; }
  std::int64_t rows() const { return batch * tokens; }
  std::int64_t distances() const { return 2 * tokens - 1; }
  /// Score matrices, [T, 2T - 1] each, head by head.
  std::int64_t matrices() const { return heads * batch; }
  std::int64_t matrix() const { return tokens * distances(); }
};

double elements(const Shape& shape) {
  return static_cast<double>(shape.count());
}

void positions(OpBench& bench, const RelativeShape& s) {
  const Shape shape{s.distances(), s.width()};
  BenchOperands data = bench.operands(elements(shape));
  const Operand tables = data.empty(bench.sums, {relative_position_table_size(s.width())}),
                out = data.empty(bench.dtype, shape);
  for (std::int64_t i = 0; i < data.sets(); ++i)
    make_relative_position_tables(bench.stream, s.width(), tables[i]);
  const auto call = [&](const Stream& stream, std::int64_t i) {
    relative_positions(stream, tables[i], out[i]);
  };
  call(bench.stream, 0);
  std::vector<double> exact(static_cast<std::size_t>(shape.count()));
  ref::relative_positions(view_of(exact, shape));
  Agreement agreement;
  agreement.add(data.read(out[0]), exact, allowed_error(bench.dtype, 2));
  bench.row("relative_positions", shape, agreement, call);
}

void queries(OpBench& bench, const RelativeShape& s) {
  const std::int64_t rows = s.rows(), width = s.width();
  const Shape packed{rows, 3 * width}, heads{s.heads, s.head_width},
      by_head{s.heads, rows, s.head_width};
  const DType t = bench.dtype, sums = bench.sums;
  BenchOperands data = bench.operands(2 * elements(by_head));
  const Operand q = data.normal(t, packed), u = data.normal(t, heads), v = data.normal(t, heads),
                shifted = data.empty(t, by_head), d_q = data.normal(t, packed),
                d_shifted = data.normal(t, by_head), d_u = data.normal(sums, heads),
                d_v = data.normal(sums, heads),
                space =
                    data.empty(DType::u8, {relative_queries_workspace(bench.stream, rows, width)});
  const auto forward = [&](const Stream& stream, std::int64_t i) {
    relative_queries(stream, {q[i], u[i], v[i], shifted[i], kScale});
  };
  const auto backward = [&](const Stream& stream, std::int64_t i) {
    relative_queries_backward(stream, {d_q[i], d_shifted[i], d_u[i], d_v[i], space[i], kScale});
  };
  forward(bench.stream, 0), backward(bench.stream, 0);
  std::vector<double> eq = q.exact(0, q.count()), eu = u.exact(0, width), ev = v.exact(0, width),
                      es(static_cast<std::size_t>(by_head.count())), ed = d_q.exact(0, d_q.count()),
                      eds = d_shifted.exact(0, d_shifted.count()), edu = d_u.exact(0, width),
                      edv = d_v.exact(0, width);
  ref::relative_queries(
      {view_of(eq, packed), view_of(eu, heads), view_of(ev, heads), view_of(es, by_head), kScale});
  ref::relative_queries_backward({view_of(ed, packed),
                                  view_of(eds, by_head),
                                  view_of(edu, heads),
                                  view_of(edv, heads),
                                  {},
                                  kScale});
  const auto terms = static_cast<double>(rows);
  Agreement up, down;
  up.add(data.read(q[0]), eq, allowed_error(t, 2));
  up.add(data.read(shifted[0]), es, allowed_error(t, 2));
  down.add(data.read(d_q[0]), ed, allowed_error(t, 2));
  down.add(data.read(d_u[0]), edu, allowed_error(sums, terms));
  down.add(data.read(d_v[0]), edv, allowed_error(sums, terms));
  bench.row("relative_queries_forward", by_head, up, forward);
  bench.row("relative_queries_backward", by_head, down, backward);
}

/// Replaces hidden scores by a number, because the difference of two infinities is not a number.
std::vector<double> hidden_as(double number, std::vector<double> scores) {
  for (double& x : scores)
    if (x == -std::numeric_limits<double>::infinity()) x = number;
  return scores;
}

void scores(OpBench& bench, const RelativeShape& s) {
  const Shape square{s.batch, s.heads, s.tokens, s.tokens},
      wide{s.matrices(), s.tokens, s.distances()};
  const AttentionContext context{.left = s.tokens / 4, .right = s.tokens / 8};
  BenchOperands data = bench.operands(elements(square) + elements(wide));
  const Operand d_bias = data.normal(bench.dtype, square), d_scores = data.empty(bench.dtype, wide),
                masked = data.normal(bench.dtype, wide);
  const auto unshift = [&](const Stream& stream, std::int64_t i) {
    unshift_scores(stream, d_bias[i], d_scores[i]);
  };
  const auto mask = [&](const Stream& stream, std::int64_t i) {
    mask_scores(stream, context, masked[i]);
  };
  unshift(bench.stream, 0), mask(bench.stream, 0);
  Agreement shifts, masks;
  for (const auto& [b, h] : {std::pair<std::int64_t, std::int64_t>{0, 0},
                             {s.batch - 1, 0},
                             {0, s.heads - 1},
                             {s.batch - 1, s.heads - 1}}) {
    const std::int64_t pairs = s.tokens * s.tokens, at = (h * s.batch + b) * s.matrix();
    std::vector<double> from = d_bias.exact((b * s.heads + h) * pairs, pairs),
                        to(static_cast<std::size_t>(s.matrix())),
                        kept = masked.exact(at, s.matrix());
    ref::unshift_scores(view_of(from, {1, 1, s.tokens, s.tokens}),
                        view_of(to, {1, 1, s.tokens, s.distances()}));
    shifts.add(data.read(d_scores[0], at, s.matrix()), to, 0);  // nothing is rounded
    ref::mask_scores(context, view_of(kept, {1, s.tokens, s.distances()}));
    constexpr double kHidden = -100;
    masks.add(hidden_as(kHidden, data.read(masked[0], at, s.matrix())), hidden_as(kHidden, kept),
              0);
  }
  bench.row("unshift_scores", square, shifts, unshift);
  bench.row("mask_scores", wide, masks, mask);
}

/// Attention of packed rows [q | k | v] with the shifted view of scores [H, B, T, 2T - 1 or more].
class ShiftedAttention {
 public:
  ShiftedAttention(OpBench& bench, const RelativeShape& s)
      : s_(s),
        row_((s.distances() + 7) / 8 * 8),
        problem_{.batch = s.batch,
                 .heads = s.heads,
                 .kv_heads = s.heads,
                 .head_width = s.head_width,
                 .queries = s.tokens,
                 .keys = s.tokens,
                 .causal = false,
                 .scale = 1 / std::sqrt(static_cast<double>(s.head_width)),
                 .dtype = bench.dtype,
                 .biased = true},
        data_(bench.operands(elements(square()) + elements(wide()))),
        qkv_(data_.normal(bench.dtype, {s.rows(), 3 * s.width()})),
        scores_(data_.normal(bench.dtype, wide())),
        d_out_(data_.normal(bench.dtype, {s.rows(), s.width()})),
        out_(data_.empty(bench.dtype, {s.rows(), s.width()})),
        d_qkv_(data_.empty(bench.dtype, {s.rows(), 3 * s.width()})),
        d_bias_(data_.empty(bench.dtype, square())),
        d_scores_(data_.empty(bench.dtype, wide())),
        sums_(data_.empty(bench.sums, {s.batch, s.heads, s.tokens})),
        space_(data_.empty(
            DType::u8,
            {std::max({std::int64_t{1}, attention_workspace(bench.stream, problem_, true),
                       attention_workspace(bench.stream, own_problem(), true)})})) {}

  void forward(const Stream& stream, std::int64_t i) const {
    attention_forward(stream, forward_of(i));
  }
  void backward(const Stream& stream, std::int64_t i) const {
    attention_backward(stream, backward_of(i));
  }
  /// With the gradient of the scores at the places of their distances.
  void backward_unshifted(const Stream& stream, std::int64_t i) const {
    AttentionBackward b = backward_of(i);
    if (const AttentionProblem own = own_problem(); relative_backward_is_one(stream, own)) {
      b.problem = own, b.d_bias = {};
      return relative_attention_backward(stream, b, d_scores_[i]);
    }
    attention_backward(stream, b);
    unshift_scores(stream, d_bias_[i], d_scores_[i]);
  }
  AttentionProblem own_problem() const {
    AttentionProblem own = problem_;
    own.implementation = AttentionImplementation::own;
    return own;
  }
  AttentionBackward backward_of(std::int64_t i) const {
    const AttentionForward f = forward_of(i);
    AttentionBackward b{.problem = problem_, .q = f.q, .k = f.k, .v = f.v, .out = f.out};
    b.d_out = heads_of(d_out_[i], 0), b.log_sum_exp = f.log_sum_exp;
    b.d_q = heads_of(d_qkv_[i], 0), b.d_k = heads_of(d_qkv_[i], s_.width());
    b.d_v = heads_of(d_qkv_[i], 2 * s_.width());
    b.workspace = space_[i], b.bias = f.bias, b.d_bias = d_bias_[i];
    return b;
  }
  void run(OpBench& bench) {
    for (std::int64_t i = 0; i < data_.sets(); ++i) forward(bench.stream, i);
    for (std::int64_t i = data_.sets(); i-- > 0;) backward(bench.stream, i);
    Agreement up, down;
    for (const std::int64_t b : {std::int64_t{0}, s_.batch - 1}) judge(b, s_.heads - 1, up, down);
    const auto call = [this](auto method) {
      return [this, method](const Stream& stream, std::int64_t i) { (this->*method)(stream, i); };
    };
    bench.row("relative_attention_forward", square(), up, call(&ShiftedAttention::forward));
    bench.row("relative_attention_backward", square(), down, call(&ShiftedAttention::backward));
    backward_unshifted(bench.stream, 0);
    Agreement unshifted;
    for (const std::int64_t b : {std::int64_t{0}, s_.batch - 1})
      judge(b, s_.heads - 1, up, unshifted), judge_scores(b, s_.heads - 1, unshifted);
    bench.row("relative_attention_backward+unshift", square(), unshifted,
              call(&ShiftedAttention::backward_unshifted));
  }

 private:
  Shape square() const { return {s_.batch, s_.heads, s_.tokens, s_.tokens}; }
  Shape wide() const { return {s_.heads, s_.batch, s_.tokens, row_}; }

  AttentionOperand heads_of(const TensorView& packed, std::int64_t first) const {
    const std::int64_t row = packed.shape.back();
    auto* at = static_cast<std::byte*>(packed.data) +
               static_cast<std::size_t>(first) * size_of(packed.dtype);
    return {.data = at, .batch_stride = s_.tokens * row, .position_stride = row};
  }
  AttentionForward forward_of(std::int64_t i) const {
    const TensorView& scores = scores_[i];
    return {.problem = problem_,
            .q = heads_of(qkv_[i], 0),
            .k = heads_of(qkv_[i], s_.width()),
            .v = heads_of(qkv_[i], 2 * s_.width()),
            .out = heads_of(out_[i], 0),
            .log_sum_exp = sums_[i],
            .workspace = space_[i],
            .bias = {.data = static_cast<const std::byte*>(scores.data) +
                             static_cast<std::size_t>(s_.tokens - 1) * size_of(scores.dtype),
                     .batch_stride = s_.tokens * row_,
                     .head_stride = s_.batch * s_.tokens * row_,
                     .query_stride = row_ - 1}};
  }
  /// `roundings` is the number of roundings to the compute type: forward the probabilities and the
  /// result; backward also the output in the row sums and the gradients of scores.
  double allowed(int roundings) const {
    const DType t = problem_.dtype;
    return (roundings - 1) * allowed_product_error(t, t, static_cast<double>(s_.head_width)) +
           allowed_product_error(t, t, static_cast<double>(s_.tokens)) +
           allowed_error(DType::f32, 0);
  }
  /// Columns [first, first + D) of the rows of sample b, of an input or of a result.
  std::vector<double> given(const Operand& x, std::int64_t b, std::int64_t first) const {
    const std::int64_t row = x[0].shape.back();
    std::vector<double> values;
    for (std::int64_t t = b * s_.tokens; t < (b + 1) * s_.tokens; ++t)
      for (std::int64_t c = first; c < first + s_.head_width; ++c)
        values.push_back(x.exact(t * row + c));
    return values;
  }
  std::vector<double> result(const Operand& x, std::int64_t b, std::int64_t first) const {
    const std::int64_t row = x[0].shape.back(), all = s_.tokens * row;
    const std::vector<double> rows = data_.read(x[0], b * all, all);
    std::vector<double> values;
    for (auto line = rows.begin() + first; line < rows.end(); line += row)
      values.insert(values.end(), line, line + s_.head_width);
    return values;
  }

  /// Compares the gradient of the scores with that of the bias as attention alone has stored it.
  void judge_scores(std::int64_t b, std::int64_t h, Agreement& down) const {
    const std::int64_t pairs = s_.tokens * s_.tokens, at = (h * s_.batch + b) * s_.tokens * row_;
    std::vector<double> from = data_.read(d_bias_[0], (b * s_.heads + h) * pairs, pairs),
                        to(static_cast<std::size_t>(s_.tokens * row_));
    ref::unshift_scores(view_of(from, {1, 1, s_.tokens, s_.tokens}),
                        view_of(to, {1, 1, s_.tokens, row_}));
    down.add(data_.read(d_scores_[0], at, s_.tokens * row_), to, allowed(3));
  }

  void judge(std::int64_t b, std::int64_t h, Agreement& up, Agreement& down) const {
    const std::int64_t d = s_.head_width, at = h * d, w = s_.width(), pairs = s_.tokens * s_.tokens;
    std::vector<double> q = given(qkv_, b, at), k = given(qkv_, b, w + at),
                        v = given(qkv_, b, 2 * w + at), d_out = given(d_out_, b, at), out(q.size()),
                        d_q(q.size()), d_k(q.size()), d_v(q.size()),
                        bias =
                            scores_.exact((h * s_.batch + b) * s_.tokens * row_, s_.tokens * row_),
                        d_bias(static_cast<std::size_t>(pairs));
    const auto rows = [&](std::vector<double>& x) { return AttentionOperand{x.data(), 0, d}; };
    AttentionForward f{.problem = problem_, .q = rows(q), .k = rows(k), .v = rows(v)};
    f.problem.batch = f.problem.heads = f.problem.kv_heads = 1, f.problem.dtype = DType::f64;
    f.out = rows(out);
    f.bias = {.data = bias.data() + s_.tokens - 1, .query_stride = row_ - 1};
    ref::attention_forward(f);
    AttentionBackward g{.problem = f.problem, .q = f.q, .k = f.k, .v = f.v, .out = f.out};
    g.d_out = rows(d_out), g.d_q = rows(d_q), g.d_k = rows(d_k), g.d_v = rows(d_v);
    g.bias = f.bias, g.d_bias = view_of(d_bias, {1, 1, s_.tokens, s_.tokens});
    ref::attention_backward(g);
    up.add(result(out_, b, at), out, allowed(2));
    down.add(result(d_qkv_, b, at), d_q, allowed(4));
    down.add(result(d_qkv_, b, w + at), d_k, allowed(4));
    down.add(result(d_qkv_, b, 2 * w + at), d_v, allowed(2));
    down.add(data_.read(d_bias_[0], (b * s_.heads + h) * pairs, pairs), d_bias, allowed(3));
  }

  RelativeShape s_;
  std::int64_t row_;  ///< elements of a row of scores, in whole packs as in a model
  AttentionProblem problem_;
  BenchOperands data_;
  Operand qkv_, scores_, d_out_, out_, d_qkv_, d_bias_, d_scores_, sums_, space_;
};

}  // namespace

void bench_relative(OpBench& bench) {
  const SpeechBenchShape& s = bench.shape.speech;
  if (s.samples == 0) return;
  const RelativeShape shape{s.samples, s.heads, (s.frames + 7) / 8, s.width / s.heads};
  positions(bench, shape);
  queries(bench, shape);
  scores(bench, shape);
  ShiftedAttention(bench, shape).run(bench);
}

}  // namespace choir::ops
