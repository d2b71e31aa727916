#pragma once
// The strided convolution against its reference, on any device.
#include "kernels/strided_conv/strided_conv.hpp"
#include "test/support/frames_case.hpp"

namespace choir::test {

struct StridedConvCase {
  DType dtype;
  std::int64_t batch, frames, frequencies, in_channels, channels;
  bool causal = false, relu = false, masked = true;
  int skew = 0;
};

/// The tensors of one call. Frames that are not counted are NaN in x, y and d_y.
struct StridedConvTensors {
  explicit StridedConvTensors(const StridedConvCase& c)
      : x_shape{c.batch, c.frames, c.frequencies, c.in_channels},
        y_shape{c.batch, ops::strided_size(c.frames, c.causal),
                ops::strided_size(c.frequencies, c.causal), c.channels},
        x(HostTensor::normal(c.dtype, x_shape, 1)),
        weight(HostTensor::normal(c.dtype, {c.channels, 9}, 2, 0.4)),
        bias(HostTensor::normal(c.dtype, {c.channels}, 3)),
        y(c.dtype, y_shape),
        d_y(HostTensor::normal(c.dtype, y_shape, 4)),
        d_x(c.dtype, x_shape),
        d_weight(HostTensor::normal(sum_dtype(c.dtype), {c.channels, 9}, 5)),
        d_bias(HostTensor::normal(sum_dtype(c.dtype), {c.channels}, 6)) {
    if (!c.masked) return;
    in_lengths = mixed_lengths(c.batch, c.frames);
    out_lengths = HostTensor(DType::i32, {c.batch});
    for (std::int64_t b = 0; b < c.batch; ++b) {
      const auto n = static_cast<std::int64_t>(in_lengths[b]);
      out_lengths.set(b, n == 0 ? 0 : static_cast<double>(ops::strided_size(n, c.causal)));
    }
    poison_padding(x, in_lengths, c.frames);
    poison_padding(d_y, out_lengths, y_shape[1]);
  }
  ops::StridedConv forward(const StridedConvCase& c) const {
    ops::StridedConv f{.x = x, .weight = weight, .bias = bias, .y = y};
    f.in_lengths = host_lengths(in_lengths), f.out_lengths = host_lengths(out_lengths);
    f.causal = c.causal, f.relu = c.relu;
    return f;
  }
  /// Allocates the workspace.
  ops::StridedConvBackward backward(const Stream& stream, const StridedConvCase& c) {
    workspace = HostTensor(DType::u8, {ops::strided_conv_workspace(stream, y_shape)});
    ops::StridedConvBackward b{.x = x, .weight = weight, .y = y, .d_y = d_y, .d_x = d_x};
    b.d_weight = d_weight, b.d_bias = d_bias, b.workspace = workspace;
    b.in_lengths = host_lengths(in_lengths), b.out_lengths = host_lengths(out_lengths);
    b.causal = c.causal, b.relu = c.relu;
    return b;
  }
  Shape x_shape, y_shape;
  HostTensor x, weight, bias, y, d_y, d_x, d_weight, d_bias;
  HostTensor in_lengths, out_lengths, workspace;
};

inline void check_strided_conv(Device& device, const StridedConvCase& c) {
  SCOPED_TRACE(fmt::format("{} [{}, {}, {}, {}] to {} channels{}{}{} skew {}", name_of(c.dtype),
                           c.batch, c.frames, c.frequencies, c.in_channels, c.channels,
                           c.causal ? " causal" : "", c.relu ? " relu" : "",
                           c.masked ? " masked" : "", c.skew));
  const Stream stream(device);
  StridedConvTensors t(c);
  const HostTensor before_weight = t.d_weight, before_bias = t.d_bias;
  Mirror mirror(device);
  ops::StridedConv f{.x = mirror.in(t.x, c.skew), .weight = mirror.in(t.weight, c.skew)};
  f.bias = mirror.in(t.bias, c.skew), f.y = mirror.io(t.y, c.skew);
  f.in_lengths = mirrored_lengths(mirror, t.in_lengths);
  f.out_lengths = mirrored_lengths(mirror, t.out_lengths);
  f.causal = c.causal, f.relu = c.relu;
  ops::strided_conv_forward(stream, f);
  ops::StridedConvBackward b{.x = f.x, .weight = f.weight};
  if (c.relu) b.y = f.y;
  b.d_y = mirror.in(t.d_y, c.skew), b.d_x = mirror.io(t.d_x, c.skew);
  b.d_weight = mirror.io(t.d_weight), b.d_bias = mirror.io(t.d_bias);
  b.in_lengths = f.in_lengths, b.out_lengths = f.out_lengths;
  b.causal = c.causal, b.relu = c.relu;
  b.workspace = mirror.workspace(ops::strided_conv_workspace(stream, t.y_shape));
  ops::strided_conv_backward(stream, b);
  mirror.fetch();

  HostTensor y(DType::f64, t.y_shape), d_x(DType::f64, t.x_shape);
  HostTensor d_weight = before_weight.to(DType::f64), d_bias = before_bias.to(DType::f64);
  // Backward starts from the signs that the device computed.
  const HostTensor x64 = t.x.to(DType::f64), w64 = t.weight.to(DType::f64),
                   seen = t.y.to(DType::f64);
  ops::StridedConv exact{.x = x64, .weight = w64};
  const HostTensor bias64 = t.bias.to(DType::f64), d_y64 = t.d_y.to(DType::f64);
  exact.bias = bias64, exact.y = y;
  exact.in_lengths = host_lengths(t.in_lengths), exact.out_lengths = host_lengths(t.out_lengths);
  exact.causal = c.causal, exact.relu = c.relu;
  ref::strided_conv_forward(exact);
  ops::StridedConvBackward back{.x = x64, .weight = w64, .y = seen, .d_y = d_y64};
  back.d_x = d_x, back.d_weight = d_weight, back.d_bias = d_bias;
  back.in_lengths = exact.in_lengths, back.out_lengths = exact.out_lengths;
  back.causal = c.causal, back.relu = c.relu;
  ref::strided_conv_backward(back);

  const DType sums = sum_dtype(c.dtype);
  const double x = largest(t.x), w = largest(t.weight), g = largest(t.d_y);
  const SumError out(c.dtype, sums, 10, x, w);
  expect_close(t.y, y, out.relative, out.absolute, "y");
  const double listeners = 4.0 * (c.in_channels == 1 ? static_cast<double>(c.channels) : 1.0);
  const SumError in(c.dtype, sums, listeners, g, w);
  expect_close(t.d_x, d_x, in.relative, in.absolute, "d_x");
  const double terms = static_cast<double>(t.y.count() / c.channels) + 1;
  const SumError parameters(sums, sums, terms, g, x);
  expect_close(t.d_weight, d_weight, parameters.relative, parameters.absolute, "d_weight");
  expect_close(t.d_bias, d_bias, parameters.relative, parameters.absolute, "d_bias");
}

}  // namespace choir::test
