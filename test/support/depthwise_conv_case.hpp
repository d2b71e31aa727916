#pragma once
// The depthwise convolution against its reference, on any device.
#include "kernels/depthwise_conv/depthwise_conv.hpp"
#include "test/support/frames_case.hpp"

namespace choir::test {

struct DepthwiseConvCase {
  DType dtype;
  std::int64_t batch, frames, channels, taps, left;
  bool bias = true, history = false, masked = true;
  int skew = 0;
};

struct DepthwiseConvTensors {
  explicit DepthwiseConvTensors(const DepthwiseConvCase& c)
      : shape{c.batch, c.frames, c.channels},
        x(HostTensor::normal(c.dtype, shape, 1)),
        weight(HostTensor::normal(c.dtype, {c.channels, c.taps}, 2, 0.4)),
        y(c.dtype, shape),
        d_y(HostTensor::normal(c.dtype, shape, 4)),
        d_x(c.dtype, shape),
        d_weight(HostTensor::normal(sum_dtype(c.dtype), {c.channels, c.taps}, 5)) {
    if (c.bias) {
      bias = HostTensor::normal(c.dtype, {c.channels}, 3);
      d_bias = HostTensor::normal(sum_dtype(c.dtype), {c.channels}, 6);
    }
    if (c.history) history = HostTensor::normal(c.dtype, {c.batch, c.left, c.channels}, 7);
    if (!c.masked) return;
    lengths = mixed_lengths(c.batch, c.frames);
    poison_padding(x, lengths, c.frames), poison_padding(d_y, lengths, c.frames);
  }
  ops::DepthwiseConv forward(const DepthwiseConvCase& c) const {
    ops::DepthwiseConv f{.x = x, .weight = weight, .bias = bias, .y = y};
    f.lengths = host_lengths(lengths), f.left = c.left, f.history = history;
    return f;
  }
  /// Allocates the workspace.
  ops::DepthwiseConvBackward backward(const Stream& stream, const DepthwiseConvCase& c) {
    workspace = HostTensor(DType::u8, {ops::depthwise_conv_workspace(stream, shape, c.taps)});
    ops::DepthwiseConvBackward b{.x = x, .weight = weight, .d_y = d_y, .d_x = d_x};
    b.d_weight = d_weight, b.d_bias = d_bias, b.workspace = workspace;
    b.lengths = host_lengths(lengths), b.left = c.left;
    return b;
  }
  Shape shape;
  HostTensor x, weight, y, d_y, d_x, d_weight, bias, d_bias, history, lengths, workspace;
};

inline void check_depthwise_conv(Device& device, const DepthwiseConvCase& c) {
  SCOPED_TRACE(fmt::format("{} [{}, {}, {}] {} taps, {} left{}{}{} skew {}", name_of(c.dtype),
                           c.batch, c.frames, c.channels, c.taps, c.left, c.bias ? " bias" : "",
                           c.history ? " history" : "", c.masked ? " masked" : "", c.skew));
  const Stream stream(device);
  DepthwiseConvTensors t(c);
  HostTensor d_weight = t.d_weight.to(DType::f64), d_bias = t.d_bias.to(DType::f64);
  Mirror mirror(device);
  ops::DepthwiseConv f{.x = mirror.in(t.x, c.skew), .weight = mirror.in(t.weight, c.skew)};
  f.bias = mirror.in(t.bias, c.skew), f.y = mirror.io(t.y, c.skew), f.left = c.left;
  f.lengths = mirrored_lengths(mirror, t.lengths), f.history = mirror.in(t.history, c.skew);
  ops::depthwise_conv_forward(stream, f);
  ops::DepthwiseConvBackward b{.x = f.x, .weight = f.weight, .d_y = mirror.in(t.d_y, c.skew)};
  b.d_x = mirror.io(t.d_x, c.skew), b.d_weight = mirror.io(t.d_weight);
  b.d_bias = mirror.io(t.d_bias), b.lengths = f.lengths, b.left = c.left;
  b.workspace = mirror.workspace(ops::depthwise_conv_workspace(stream, t.shape, c.taps));
  ops::depthwise_conv_backward(stream, b);
  mirror.fetch();

  HostTensor y(DType::f64, t.shape), d_x(DType::f64, t.shape);
  const HostTensor x64 = t.x.to(DType::f64), w64 = t.weight.to(DType::f64),
                   bias64 = t.bias.to(DType::f64), d_y64 = t.d_y.to(DType::f64),
                   history64 = t.history.to(DType::f64);
  ops::DepthwiseConv exact{.x = x64, .weight = w64, .bias = bias64, .y = y};
  exact.lengths = host_lengths(t.lengths), exact.left = c.left, exact.history = history64;
  ref::depthwise_conv_forward(exact);
  ops::DepthwiseConvBackward back{.x = x64, .weight = w64, .d_y = d_y64, .d_x = d_x};
  back.d_weight = d_weight, back.d_bias = d_bias, back.lengths = exact.lengths, back.left = c.left;
  ref::depthwise_conv_backward(back);

  const DType sums = sum_dtype(c.dtype);
  const double x = std::max(largest(t.x), largest(t.history)), w = largest(t.weight),
               g = largest(t.d_y), taps = static_cast<double>(c.taps);
  const SumError out(c.dtype, sums, taps + 1, x, w), in(c.dtype, sums, taps, g, w);
  expect_close(t.y, y, out.relative, out.absolute, "y");
  expect_close(t.d_x, d_x, in.relative, in.absolute, "d_x");
  const SumError parameters(sums, sums, static_cast<double>(c.batch * c.frames + 1), g, x);
  expect_close(t.d_weight, d_weight, parameters.relative, parameters.absolute, "d_weight");
  if (c.bias) expect_close(t.d_bias, d_bias, parameters.relative, parameters.absolute, "d_bias");
}

}  // namespace choir::test
