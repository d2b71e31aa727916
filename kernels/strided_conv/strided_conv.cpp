// The strided convolution: checks, dispatch and fp64 reference.

#include "kernels/strided_conv/strided_conv.hpp"

#include "kernels/cpu/frames.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

void check_shapes(const TensorView& x, const TensorView& weight, const Shape& y, bool causal) {
  CHOIR_CHECK(x.shape.rank() == 4 && y.rank() == 4, "strided convolution of {} to {}",
              to_string(x.shape), to_string(y));
  const std::int64_t channels = y[3];
  CHOIR_CHECK(x.shape[3] == 1 || x.shape[3] == channels, "{} channels in, {} out: not depthwise",
              x.shape[3], channels);
  CHOIR_CHECK(
      x.shape[1] > 0 && x.shape[2] > 0 && y[0] == x.shape[0] &&
          y[1] == strided_size(x.shape[1], causal) && y[2] == strided_size(x.shape[2], causal),
      "a strided convolution of {} does not have the shape {}", to_string(x.shape), to_string(y));
  check_tensor(weight, x.dtype, channels * 9, "weight");
}

}  // namespace

std::int64_t strided_conv_workspace(const Stream& stream, const Shape& y) {
  if (stream.device().plans_for() == DeviceKind::cuda) return cuda::strided_conv_workspace(y);
  return cpu::strided_conv_workspace(y);
}

void strided_conv_forward(const Stream& stream, const StridedConv& args) {
  const DType dtype = args.x.dtype;
  check_shapes(args.x, args.weight, args.y.shape, args.causal);
  check_tensor(args.x, dtype, args.x.count(), "x");
  check_tensor(args.bias, dtype, args.y.shape.back(), "bias");
  check_tensor(args.y, dtype, args.y.count(), "y");
  stream.count(18.0 * static_cast<double>(args.y.count()),
               as_bytes(args.x) + as_bytes(args.y) + as_bytes(args.weight) + as_bytes(args.bias));
  if (on_cuda(stream)) return cuda::strided_conv_forward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::strided_conv_forward<decltype(t)>(args); });
}

void strided_conv_backward(const Stream& stream, const StridedConvBackward& args) {
  const DType dtype = args.d_y.dtype, sums = sum_dtype_of(dtype);
  const std::int64_t channels = args.d_y.shape.back();
  check_shapes(args.x, args.weight, args.d_y.shape, args.causal);
  check_tensor(args.x, dtype, args.x.count(), "x");
  check_tensor(args.d_y, dtype, args.d_y.count(), "d_y");
  if (args.relu) check_tensor(args.y, dtype, args.d_y.count(), "y");
  check_optional(args.d_x, dtype, args.x.count(), "d_x");
  check_optional(args.d_weight, sums, channels * 9, "d_weight");
  check_optional(args.d_bias, sums, channels, "d_bias");
  check_workspace(args.workspace, strided_conv_workspace(stream, args.d_y.shape));
  const double wanted = (args.d_x.empty() ? 0.0 : 18.0) + (args.d_weight.empty() ? 0.0 : 18.0);
  stream.count(wanted * static_cast<double>(args.d_y.count()),
               as_bytes(args.d_y) + (args.relu ? as_bytes(args.y) : 0) + as_bytes(args.d_x) +
                   (args.d_weight.empty() ? 0 : as_bytes(args.x)) + as_bytes(args.weight) +
                   2 * as_bytes(args.d_weight) + 2 * as_bytes(args.d_bias));
  if (on_cuda(stream)) return cuda::strided_conv_backward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::strided_conv_backward<decltype(t)>(args); });
}

}  // namespace choir::ops

namespace choir::ref {
namespace {

/// Calls f(index of x, tap) for every tap of output (b, t, f, c) that reads a valid input.
template <class F>
void for_taps(const Shape& x, const std::int32_t* in_lengths, bool causal, std::int64_t b,
              std::int64_t t, std::int64_t f, std::int64_t c, const F& visit) {
  const std::int64_t pad = causal ? 2 : 1, frames = frames_of(in_lengths, b, x[1]);
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 3; ++j) {
      const std::int64_t row = 2 * t + i - pad, column = 2 * f + j - pad;
      if (row < 0 || row >= frames || column < 0 || column >= x[2]) continue;
      visit(((b * x[1] + row) * x[2] + column) * x[3] + (x[3] == 1 ? 0 : c), 3 * i + j);
    }
}

/// Calls body(b, t, f, c, index of y) for every output of valid frames.
template <class Body>
void for_outputs(const Shape& y, const std::int32_t* out_lengths, const Body& body) {
  for (std::int64_t b = 0; b < y[0]; ++b)
    for (std::int64_t t = 0; t < frames_of(out_lengths, b, y[1]); ++t)
      for (std::int64_t f = 0; f < y[2]; ++f)
        for (std::int64_t c = 0; c < y[3]; ++c)
          body(b, t, f, c, ((b * y[1] + t) * y[2] + f) * y[3] + c);
}

}  // namespace

void strided_conv_forward(const ops::StridedConv& args) {
  const double *x = args.x.as<double>(), *w = args.weight.as<double>();
  double* y = args.y.as<double>();
  for (std::int64_t i = 0; i < args.y.count(); ++i) y[i] = 0;
  for_outputs(args.y.shape, args.out_lengths, [&](auto b, auto t, auto f, auto c, auto at) {
    double sum = args.bias.as<double>()[c];
    for_taps(args.x.shape, args.in_lengths, args.causal, b, t, f, c,
             [&](std::int64_t from, std::int64_t tap) { sum += w[9 * c + tap] * x[from]; });
    y[at] = args.relu && sum < 0 ? 0 : sum;
  });
}

void strided_conv_backward(const ops::StridedConvBackward& args) {
  const double *x = args.x.as<double>(), *w = args.weight.as<double>();
  if (!args.d_x.empty())
    for (std::int64_t i = 0; i < args.d_x.count(); ++i) args.d_x.as<double>()[i] = 0;
  for_outputs(args.d_y.shape, args.out_lengths, [&](auto b, auto t, auto f, auto c, auto at) {
    if (args.relu && !(args.y.as<double>()[at] > 0)) return;
    const double g = args.d_y.as<double>()[at];
    if (!args.d_bias.empty()) args.d_bias.as<double>()[c] += g;
    for_taps(args.x.shape, args.in_lengths, args.causal, b, t, f, c,
             [&](std::int64_t from, std::int64_t tap) {
               if (!args.d_x.empty()) args.d_x.as<double>()[from] += g * w[9 * c + tap];
               if (!args.d_weight.empty()) args.d_weight.as<double>()[9 * c + tap] += g * x[from];
             });
  });
}

}  // namespace choir::ref
