#pragma once
// Batch normalisation against its reference, on any device.
#include "kernels/norm/batch_norm.hpp"
#include "test/support/frames_case.hpp"

namespace choir::test {

struct BatchNormCase {
  DType dtype;
  std::int64_t batch, frames, width;
  bool training = true, masked = true;
  double mean = 0.5;  ///< mean of x, whose standard deviation is 1
  int skew = 0;
};

struct BatchNormTensors {
  explicit BatchNormTensors(const BatchNormCase& c)
      : shape{c.batch * c.frames, c.width},
        x(HostTensor::normal(c.dtype, shape, 1, 1, c.mean)),
        weight(HostTensor::normal(c.dtype, {c.width}, 2)),
        bias(HostTensor::normal(c.dtype, {c.width}, 3)),
        y(c.dtype, shape),
        d_y(HostTensor::normal(c.dtype, shape, 4)),
        d_x(c.dtype, shape),
        mean(sum_dtype(c.dtype), {c.width}),
        rstd(sum_dtype(c.dtype), {c.width}),
        running_mean(sum_dtype(c.dtype), {c.width}),
        running_variance(sum_dtype(c.dtype), {c.width}),
        frames(sum_dtype(c.dtype), {1}),
        d_weight(HostTensor::normal(sum_dtype(c.dtype), {c.width}, 5)),
        d_bias(HostTensor::normal(sum_dtype(c.dtype), {c.width}, 6)) {
    if (!c.training)
      for (std::int64_t i = 0; i < c.width; ++i)
        running_mean.set(i, 0.1 * static_cast<double>(i % 7)),
            running_variance.set(i, 0.5 + static_cast<double>(i % 5));
    if (!c.masked) return;
    lengths = mixed_lengths(c.batch, c.frames);
    poison_padding(x, lengths, c.frames), poison_padding(d_y, lengths, c.frames);
  }
  /// Allocates the workspace.
  ops::BatchNorm forward(const Stream& stream, const BatchNormCase& c) {
    workspace = HostTensor(DType::u8, {ops::batch_norm_workspace(stream, shape[0], c.width)});
    ops::BatchNorm f{.x = x, .y = y, .weight = weight, .bias = bias, .mean = mean, .rstd = rstd};
    f.running_mean = running_mean, f.running_variance = running_variance;
    f.lengths = host_lengths(lengths), f.tokens = c.frames, f.training = c.training;
    f.workspace = workspace;
    return f;
  }
  /// Must be called after forward().
  ops::BatchNormBackward backward(const BatchNormCase& c) const {
    ops::BatchNormBackward b{.x = x, .d_y = d_y, .weight = weight, .mean = mean, .rstd = rstd};
    b.d_x = d_x, b.d_weight = d_weight, b.d_bias = d_bias, b.workspace = workspace;
    b.lengths = host_lengths(lengths), b.tokens = c.frames;
    return b;
  }
  Shape shape;
  HostTensor x, weight, bias, y, d_y, d_x, mean, rstd, running_mean, running_variance, frames;
  HostTensor d_weight, d_bias, lengths, workspace;
};

inline void check_batch_norm(Device& device, const BatchNormCase& c) {
  SCOPED_TRACE(fmt::format("{} [{}, {}, {}] mean {}{}{} skew {}", name_of(c.dtype), c.batch,
                           c.frames, c.width, c.mean, c.training ? " training" : "",
                           c.masked ? " masked" : "", c.skew));
  const Stream stream(device);
  BatchNormTensors t(c);
  HostTensor d_weight = t.d_weight.to(DType::f64), d_bias = t.d_bias.to(DType::f64);
  Mirror mirror(device);
  ops::BatchNorm f{.x = mirror.in(t.x, c.skew), .y = mirror.io(t.y, c.skew)};
  f.weight = mirror.in(t.weight, c.skew), f.bias = mirror.in(t.bias, c.skew);
  f.mean = mirror.io(t.mean), f.rstd = mirror.io(t.rstd);
  f.running_mean = mirror.io(t.running_mean), f.running_variance = mirror.io(t.running_variance);
  if (c.training) f.frames = mirror.io(t.frames);
  f.lengths = mirrored_lengths(mirror, t.lengths), f.tokens = c.frames, f.training = c.training;
  const std::int64_t bytes = ops::batch_norm_workspace(stream, c.batch * c.frames, c.width);
  f.workspace = mirror.workspace(bytes);
  ops::batch_norm_forward(stream, f);
  if (c.training) {
    ops::BatchNormBackward b{.x = f.x, .d_y = mirror.in(t.d_y, c.skew), .weight = f.weight};
    b.mean = f.mean, b.rstd = f.rstd, b.d_x = mirror.io(t.d_x, c.skew);
    b.d_weight = mirror.io(t.d_weight), b.d_bias = mirror.io(t.d_bias);
    b.lengths = f.lengths, b.tokens = c.frames, b.workspace = mirror.workspace(bytes);
    ops::batch_norm_backward(stream, b);
  }
  mirror.fetch();

  HostTensor y(DType::f64, t.shape), d_x(DType::f64, t.shape), mean(DType::f64, {c.width}),
      rstd(DType::f64, {c.width}), running_mean = t.running_mean.to(DType::f64),
                                   running_variance = t.running_variance.to(DType::f64);
  const HostTensor x64 = t.x.to(DType::f64), w64 = t.weight.to(DType::f64),
                   bias64 = t.bias.to(DType::f64), d_y64 = t.d_y.to(DType::f64);
  ops::BatchNorm exact{.x = x64, .y = y, .weight = w64, .bias = bias64, .mean = mean};
  exact.rstd = rstd, exact.running_mean = running_mean, exact.running_variance = running_variance;
  exact.lengths = host_lengths(t.lengths), exact.tokens = c.frames, exact.training = c.training;
  HostTensor frames(DType::f64, {1});
  exact.frames = frames;
  ref::batch_norm_forward(exact);
  if (c.training) {
    EXPECT_EQ(t.frames[0], frames[0]);
  }

  const DType sums = sum_dtype(c.dtype);
  const double u = unit_roundoff(sums), rows = static_cast<double>(c.batch * c.frames);
  // Sums of differences that lie within the data: the largest is at most twice the largest
  // deviation.
  const double spread = 2 * largest(HostTensor::normal(c.dtype, t.shape, 1));
  const double mean_error = (rows + 4) * u * spread + 4 * u * std::fabs(c.mean);
  expect_close(t.mean, mean, 2 * u, mean_error, "mean");
  const double variance_error = (rows + 8) * u * spread * spread;
  expect_close(t.running_mean, running_mean, 2 * u, mean_error, "running mean");
  expect_close(t.running_variance, running_variance, 4 * u, 2 * variance_error, "running variance");
  // rstd = v^-1/2: its relative error is half that of v, which is mostly above 1/4 here; with one
  // row v is eps and exact.
  expect_close(t.rstd, rstd, 4 * u + (rows > 1 ? 4 * variance_error : 0), 0, "rstd");
  // y and d_x from the statistics that the device computed.
  const HostTensor mean64 = t.mean.to(DType::f64), rstd64 = t.rstd.to(DType::f64);
  ops::BatchNorm rest = exact;
  rest.training = false;
  HostTensor given_variance(DType::f64, {c.width});
  for (std::int64_t i = 0; i < c.width; ++i)
    given_variance.set(i, 1 / (rstd64[i] * rstd64[i]) - rest.eps);
  rest.running_mean = mean64, rest.running_variance = given_variance;
  ref::batch_norm_forward(rest);
  const double store = operation_roundoff(c.dtype), w = largest(t.weight), r = largest(t.rstd);
  const double h = spread * r * w + largest(t.bias);
  expect_close(t.y, y, store, 8 * u * h + 2 * u * std::fabs(c.mean) * r * w, "y");
  if (!c.training) return;
  ops::BatchNormBackward back{.x = x64, .d_y = d_y64, .weight = w64, .mean = mean64};
  back.rstd = rstd64, back.d_x = d_x, back.d_weight = d_weight, back.d_bias = d_bias;
  back.lengths = exact.lengths, back.tokens = c.frames;
  ref::batch_norm_backward(back);
  const double g = largest(t.d_y), high = spread * r + std::fabs(c.mean) * 2 * u * r;
  const double product_error = (rows + 8) * rows * u * g * high;
  expect_close(t.d_weight, d_weight, 2 * u, product_error, "d_weight");
  expect_close(t.d_bias, d_bias, 2 * u, (rows + 8) * rows * u * g, "d_bias");
  expect_close(t.d_x, d_x, store,
               w * r * ((rows + 16) * u * g * (1 + high * high) + 8 * u * g * high), "d_x");
}

}  // namespace choir::test
