// Benches of the operations that a FastConformer uses in addition to a GPT, channel by channel:
// convolutions, GLU, batch normalisation.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "kernels/activation/activation.hpp"
#include "kernels/bench/op_bench.hpp"
#include "kernels/depthwise_conv/depthwise_conv.hpp"
#include "kernels/norm/batch_norm.hpp"
#include "kernels/strided_conv/strided_conv.hpp"

namespace choir::ops {
namespace {

/// The channels that are compared, over all rows; channels are independent of each other.
class Channels {
 public:
  explicit Channels(std::int64_t width) : width_(width) {
    const std::set<std::int64_t> some{0, width / 3, width / 2, width - 1};
    which_.assign(some.begin(), some.end());
  }
  std::int64_t count() const { return static_cast<std::int64_t>(which_.size()); }
  /// The exact input x [rows, width] in these channels.
  std::vector<double> exact(const Operand& x, std::int64_t rows) const {
    std::vector<double> values;
    for (std::int64_t r = 0; r < rows; ++r)
      for (const std::int64_t c : which_) values.push_back(x.exact(r * width_ + c));
    return values;
  }
  /// The exact input in both halves of rows [a C | g C].
  std::vector<double> exact_pair(const Operand& x, std::int64_t rows) const {
    return exact(x, 2 * rows);
  }
  /// A result [rows, width] in these channels.
  std::vector<double> read(const BenchOperands& data, const TensorView& x) const {
    constexpr std::int64_t kAtOnce = std::int64_t{1} << 22;
    const std::int64_t rows = x.count() / width_,
                       some = std::max<std::int64_t>(1, kAtOnce / width_);
    std::vector<double> values;
    for (std::int64_t first = 0; first < rows; first += some) {
      const std::int64_t n = std::min(some, rows - first);
      const std::vector<double> part = data.read(x, first * width_, n * width_);
      for (std::int64_t r = 0; r < n; ++r)
        for (const std::int64_t c : which_)
          values.push_back(part[static_cast<std::size_t>(r * width_ + c)]);
    }
    return values;
  }
  /// The rows of a weight [width, taps].
  std::vector<double> taps(const std::vector<double>& weight, std::int64_t n) const {
    std::vector<double> values;
    for (const std::int64_t c : which_)
      values.insert(values.end(), weight.begin() + c * n, weight.begin() + (c + 1) * n);
    return values;
  }
  std::vector<double> taps(const Operand& weight, std::int64_t n) const {
    return taps(weight.exact(0, width_ * n), n);
  }

 private:
  std::int64_t width_;
  std::vector<std::int64_t> which_;
};

/// Runs both directions of every set: backward needs the results of forward, and the first touch of
/// a page must not be timed.
template <class Forward, class Backward>
void visit_all(const OpBench& bench, const BenchOperands& data, const Forward& forward,
               const Backward& backward) {
  for (std::int64_t i = 0; i < data.sets(); ++i) forward(bench.stream, i);
  for (std::int64_t i = data.sets(); i-- > 0;) backward(bench.stream, i);
}

double elements(const Shape& shape) {
  return static_cast<double>(shape.count());
}

/// Bench from `in` channels to `channels`. With one input channel it is the first layer: relu, and
/// no gradient of its input.
void strided(OpBench& bench, const char* name, const Shape& in, std::int64_t channels) {
  const bool first = in[3] == 1;
  const DType t = bench.dtype, sums = bench.sums;
  const Shape out{in[0], strided_size(in[1], false), strided_size(in[2], false), channels};
  BenchOperands data = bench.operands(elements(in) + elements(out));
  const Operand x = data.normal(t, in), w = data.normal(t, {channels, 9}),
                bias = data.normal(t, {channels}), d_y = data.normal(t, out),
                d_w = data.normal(sums, {channels, 9}), d_b = data.normal(sums, {channels}),
                y = data.empty(t, out), d_x = data.empty(t, in),
                space = data.empty(DType::u8, {strided_conv_workspace(bench.stream, out)});
  const auto forward = [&](const Stream& s, std::int64_t i) {
    StridedConv f{.x = x[i], .weight = w[i], .bias = bias[i], .y = y[i]};
    f.relu = first;
    strided_conv_forward(s, f);
  };
  const auto backward = [&](const Stream& s, std::int64_t i) {
    StridedConvBackward b{.x = x[i], .weight = w[i], .y = y[i], .d_y = d_y[i]};
    if (!first) b.d_x = d_x[i];
    b.d_weight = d_w[i], b.d_bias = d_b[i], b.relu = first, b.workspace = space[i];
    strided_conv_backward(s, b);
  };
  visit_all(bench, data, forward, backward);

  const Channels some(channels);
  const std::int64_t n = some.count(), rows = out.count() / channels, in_rows = in.count() / in[3];
  const Shape of{in[0], in[1], in[2], first ? 1 : n}, to{out[0], out[1], out[2], n};
  std::vector<double> ex = first ? x.exact(0, in_rows) : some.exact(x, in_rows),
                      ew = some.taps(w, 9), eb = some.taps(bias, 1), ed = some.exact(d_y, rows),
                      edw = some.taps(d_w, 9), edb = some.taps(d_b, 1), ey(ed.size()),
                      edx(ex.size());
  StridedConv f{.x = view_of(ex, of), .weight = view_of(ew, {n, 9}), .bias = view_of(eb, {n})};
  f.y = view_of(ey, to), f.relu = first;
  ref::strided_conv_forward(f);
  Agreement up, down;
  std::vector<double> seen = some.read(data, y[0]);  // backward reads its signs
  up.add(seen, ey, allowed_error(t, 9));
  StridedConvBackward b{.x = f.x, .weight = f.weight, .y = view_of(seen, to)};
  b.d_y = view_of(ed, to), b.relu = first;
  if (!first) b.d_x = view_of(edx, of);
  b.d_weight = view_of(edw, {n, 9}), b.d_bias = view_of(edb, {n});
  ref::strided_conv_backward(b);
  if (!first) down.add(some.read(data, d_x[0]), edx, allowed_error(t, 4));
  const double allowed = allowed_error(sums, static_cast<double>(rows));
  down.add(some.taps(data.read(d_w[0]), 9), edw, allowed);
  down.add(some.taps(data.read(d_b[0]), 1), edb, allowed);
  bench.row((std::string(name) + "_forward").c_str(), out, up, forward);
  bench.row((std::string(name) + "_backward").c_str(), out, down, backward);
}

void depthwise(OpBench& bench, const Shape& shape, std::int64_t taps) {
  const DType t = bench.dtype, sums = bench.sums;
  const std::int64_t width = shape[2], left = (taps - 1) / 2;
  BenchOperands data = bench.operands(2 * elements(shape));
  const Operand x = data.normal(t, shape), w = data.normal(t, {width, taps}),
                bias = data.normal(t, {width}), d_y = data.normal(t, shape),
                d_w = data.normal(sums, {width, taps}), d_b = data.normal(sums, {width}),
                y = data.empty(t, shape), d_x = data.empty(t, shape),
                space =
                    data.empty(DType::u8, {depthwise_conv_workspace(bench.stream, shape, taps)});
  const auto forward = [&](const Stream& s, std::int64_t i) {
    DepthwiseConv f{.x = x[i], .weight = w[i], .bias = bias[i], .y = y[i]};
    f.left = left;
    depthwise_conv_forward(s, f);
  };
  const auto backward = [&](const Stream& s, std::int64_t i) {
    DepthwiseConvBackward b{.x = x[i], .weight = w[i], .d_y = d_y[i], .d_x = d_x[i]};
    b.d_weight = d_w[i], b.d_bias = d_b[i], b.left = left, b.workspace = space[i];
    depthwise_conv_backward(s, b);
  };
  visit_all(bench, data, forward, backward);

  const Channels some(width);
  const std::int64_t n = some.count(), rows = shape[0] * shape[1];
  const Shape of{shape[0], shape[1], n};
  std::vector<double> ex = some.exact(x, rows), ew = some.taps(w, taps), eb = some.taps(bias, 1),
                      ed = some.exact(d_y, rows), edw = some.taps(d_w, taps),
                      edb = some.taps(d_b, 1), ey(ex.size()), edx(ex.size());
  DepthwiseConv f{.x = view_of(ex, of), .weight = view_of(ew, {n, taps}), .bias = view_of(eb, {n})};
  f.y = view_of(ey, of), f.left = left;
  ref::depthwise_conv_forward(f);
  DepthwiseConvBackward b{.x = f.x, .weight = f.weight, .d_y = view_of(ed, of)};
  b.d_x = view_of(edx, of), b.left = left;
  b.d_weight = view_of(edw, {n, taps}), b.d_bias = view_of(edb, {n});
  ref::depthwise_conv_backward(b);
  Agreement up, down;
  up.add(some.read(data, y[0]), ey, allowed_error(t, static_cast<double>(taps)));
  down.add(some.read(data, d_x[0]), edx, allowed_error(t, static_cast<double>(taps)));
  const double allowed = allowed_error(sums, static_cast<double>(rows));
  down.add(some.taps(data.read(d_w[0]), taps), edw, allowed);
  down.add(some.taps(data.read(d_b[0]), 1), edb, allowed);
  bench.row("depthwise_conv_forward", shape, up, forward);
  bench.row("depthwise_conv_backward", shape, down, backward);
}

void glu(OpBench& bench, std::int64_t rows, std::int64_t width) {
  const DType t = bench.dtype;
  const Shape shape{rows, width}, wide{rows, 2 * width};
  BenchOperands data = bench.operands(3 * elements(shape));
  const Operand x = data.normal(t, wide), d_y = data.normal(t, shape), y = data.empty(t, shape),
                d_x = data.empty(t, wide);
  const auto forward = [&](const Stream& s, std::int64_t i) { glu_forward(s, x[i], y[i]); };
  const auto backward = [&](const Stream& s, std::int64_t i) {
    glu_backward(s, x[i], d_y[i], d_x[i]);
  };
  visit_all(bench, data, forward, backward);
  const Channels some(width);
  const Shape of{rows, some.count()}, of_wide{rows, 2 * some.count()};
  std::vector<double> ex = some.exact_pair(x, rows), ed = some.exact(d_y, rows), ey(ed.size()),
                      edx(ex.size());
  ref::glu_forward(view_of(ex, of_wide), view_of(ey, of), nullptr, 1);
  ref::glu_backward(view_of(ex, of_wide), view_of(ed, of), view_of(edx, of_wide), nullptr, 1);
  Agreement up, down;
  up.add(some.read(data, y[0]), ey, allowed_error(t, 0));
  down.add(some.read(data, d_x[0]), edx, allowed_error(t, 0));
  bench.row("glu_forward", shape, up, forward);
  bench.row("glu_backward", shape, down, backward);
}

void batch_norm(OpBench& bench, std::int64_t rows, std::int64_t width) {
  const DType t = bench.dtype, sums = bench.sums;
  const Shape shape{rows, width}, row{width};
  BenchOperands data = bench.operands(2 * elements(shape));
  const Operand x = data.normal(t, shape), w = data.normal(t, row), bias = data.normal(t, row),
                d_y = data.normal(t, shape), d_w = data.normal(sums, row),
                d_b = data.normal(sums, row), y = data.empty(t, shape), d_x = data.empty(t, shape),
                mean = data.empty(sums, row), rstd = data.empty(sums, row),
                running_mean = data.empty(sums, row), running_variance = data.empty(sums, row),
                space = data.empty(DType::u8, {batch_norm_workspace(bench.stream, rows, width)});
  const auto forward = [&](const Stream& s, std::int64_t i) {
    BatchNorm f{.x = x[i], .y = y[i], .weight = w[i], .bias = bias[i], .mean = mean[i]};
    f.rstd = rstd[i], f.running_mean = running_mean[i], f.running_variance = running_variance[i];
    f.workspace = space[i];
    batch_norm_forward(s, f);
  };
  const auto backward = [&](const Stream& s, std::int64_t i) {
    BatchNormBackward b{.x = x[i], .d_y = d_y[i], .weight = w[i], .mean = mean[i], .rstd = rstd[i]};
    b.d_x = d_x[i], b.d_weight = d_w[i], b.d_bias = d_b[i], b.workspace = space[i];
    batch_norm_backward(s, b);
  };
  visit_all(bench, data, forward, backward);
  const Channels some(width);
  const std::int64_t n = some.count();
  const Shape of{rows, n};
  std::vector<double> ex = some.exact(x, rows), ew = some.taps(w, 1), eb = some.taps(bias, 1),
                      ed = some.exact(d_y, rows), edw = some.taps(d_w, 1), edb = some.taps(d_b, 1),
                      ey(ex.size()), edx(ex.size()), em(ew.size()), er(ew.size()), erm(ew.size()),
                      erv(ew.size());
  BatchNorm f{.x = view_of(ex, of), .y = view_of(ey, of), .weight = view_of(ew, {n})};
  f.bias = view_of(eb, {n}), f.mean = view_of(em, {n}), f.rstd = view_of(er, {n});
  f.running_mean = view_of(erm, {n}), f.running_variance = view_of(erv, {n});
  ref::batch_norm_forward(f);
  BatchNormBackward b{.x = f.x, .d_y = view_of(ed, of), .weight = f.weight, .mean = f.mean};
  b.rstd = f.rstd, b.d_x = view_of(edx, of);
  b.d_weight = view_of(edw, {n}), b.d_bias = view_of(edb, {n});
  ref::batch_norm_backward(b);
  const auto terms = static_cast<double>(rows);
  Agreement up, down;
  up.add(some.read(data, y[0]), ey, allowed_error(t, terms));
  up.add(some.taps(data.read(running_variance[0]), 1), erv, allowed_error(sums, terms));
  down.add(some.read(data, d_x[0]), edx, allowed_error(t, terms));
  down.add(some.taps(data.read(d_w[0]), 1), edw, allowed_error(sums, terms));
  down.add(some.taps(data.read(d_b[0]), 1), edb, allowed_error(sums, terms));
  bench.row("batch_norm_forward", shape, up, forward);
  bench.row("batch_norm_backward", shape, down, backward);
}

}  // namespace

void bench_convolutions(OpBench& bench) {
  const SpeechBenchShape& s = bench.shape.speech;
  if (s.samples == 0) return;
  const std::int64_t f1 = strided_size(s.mels, false), t1 = strided_size(s.frames, false),
                     t3 = strided_size(strided_size(t1, false), false);
  strided(bench, "strided_conv_first", {s.samples, s.frames, s.mels, 1}, s.channels);
  strided(bench, "strided_conv", {s.samples, t1, f1, s.channels}, s.channels);
  depthwise(bench, {s.samples, t3, s.width}, s.taps);
  glu(bench, s.samples * t3, s.width);
  batch_norm(bench, s.samples * t3, s.width);
}

}  // namespace choir::ops
