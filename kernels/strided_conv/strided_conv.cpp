#include "choir/ops/strided_conv.hpp"

#include "kernels/dispatch.hpp"
#include "kernels/strided_conv/strided_conv.hpp"

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
