#include "choir/ops/depthwise_conv.hpp"

#include "kernels/depthwise_conv/depthwise_conv.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

void check_shapes(const TensorView& x, const TensorView& weight, std::int64_t left) {
  CHOIR_CHECK(x.shape.rank() == 3 && weight.shape.rank() == 2 && weight.shape[0] == x.shape[2],
              "depthwise convolution of {} with weight {}", to_string(x.shape),
              to_string(weight.shape));
  const std::int64_t taps = weight.shape[1];
  CHOIR_CHECK(taps >= 1 && taps <= kWidestDepthwise, "{} taps, at most {}", taps, kWidestDepthwise);
  CHOIR_CHECK(left >= 0 && left < taps, "{} frames to the left of {} taps", left, taps);
  check_tensor(x, x.dtype, x.count(), "x");
  check_tensor(weight, x.dtype, weight.count(), "weight");
}

}  // namespace

std::int64_t depthwise_conv_workspace(const Stream& stream, const Shape& x, std::int64_t taps) {
  if (stream.device().plans_for() == DeviceKind::cuda)
    return cuda::depthwise_conv_workspace(x, taps);
  return cpu::depthwise_conv_workspace(x, taps);
}

void depthwise_conv_forward(const Stream& stream, const DepthwiseConv& args) {
  const DType dtype = args.x.dtype;
  check_shapes(args.x, args.weight, args.left);
  const std::int64_t channels = args.x.shape[2];
  check_optional(args.bias, dtype, channels, "bias");
  check_tensor(args.y, dtype, args.x.count(), "y");
  check_optional(args.history, dtype, args.x.shape[0] * args.left * channels, "history");
  CHOIR_CHECK(args.x.data != args.y.data, "depthwise convolution does not run in place");
  stream.count(2.0 * static_cast<double>(args.weight.shape[1] * args.x.count()),
               as_bytes(args.x) + as_bytes(args.history) + as_bytes(args.y) +
                   as_bytes(args.weight) + as_bytes(args.bias));
  if (on_cuda(stream)) return cuda::depthwise_conv_forward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::depthwise_conv_forward<decltype(t)>(args); });
}

void depthwise_conv_backward(const Stream& stream, const DepthwiseConvBackward& args) {
  const DType dtype = args.x.dtype, sums = sum_dtype_of(dtype);
  check_shapes(args.x, args.weight, args.left);
  const std::int64_t channels = args.x.shape[2], taps = args.weight.shape[1];
  check_tensor(args.d_y, dtype, args.x.count(), "d_y");
  check_tensor(args.d_x, dtype, args.x.count(), "d_x");
  check_optional(args.d_weight, sums, channels * taps, "d_weight");
  check_optional(args.d_bias, sums, channels, "d_bias");
  CHOIR_CHECK(args.d_x.data != args.d_y.data && args.d_x.data != args.x.data,
              "depthwise convolution does not run in place");
  check_workspace(args.workspace, depthwise_conv_workspace(stream, args.x.shape, taps));
  stream.count((args.d_weight.empty() ? 2.0 : 4.0) * static_cast<double>(taps * args.x.count()),
               as_bytes(args.d_y) + as_bytes(args.d_x) +
                   (args.d_weight.empty() ? 0 : as_bytes(args.x)) + as_bytes(args.weight) +
                   2 * as_bytes(args.d_weight) + 2 * as_bytes(args.d_bias));
  if (on_cuda(stream)) return cuda::depthwise_conv_backward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::depthwise_conv_backward<decltype(t)>(args); });
}

}  // namespace choir::ops
