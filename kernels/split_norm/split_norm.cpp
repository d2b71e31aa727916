#include "choir/ops/split_norm.hpp"

#include "kernels/dispatch.hpp"
#include "kernels/split_norm/split_norm.hpp"

namespace choir::ops {
namespace {

double elements(const TensorView& x) {
  return static_cast<double>(x.count());
}

void check_backward(const SplitNormBackward& a) {
  const std::int64_t rows = a.x.shape.rows(), width = a.x.shape.back();
  const DType sum = sum_dtype_of(a.x.dtype);
  check_tensor(a.x, a.x.dtype, rows * width, "x");
  check_tensor(a.d_out, a.x.dtype, rows * width, "d_out");
  check_tensor(a.weight, a.x.dtype, width, "weight");
  check_tensor(a.mean, sum, rows, "mean");
  check_tensor(a.rstd, sum, rows, "rstd");
  check_tensor(a.sums, sum, 2 * rows, "sums");
}

}  // namespace

void split_norm_moments(const Stream& stream, const TensorView& x, const TensorView& moments) {
  check_tensor(x, x.dtype, x.count(), "x");
  check_tensor(moments, sum_dtype_of(x.dtype), 2 * x.shape.rows(), "moments");
  stream.count(4 * elements(x), as_bytes(x) + as_bytes(moments));
  if (on_cuda(stream)) return cuda::split_norm_moments(stream, x, moments);
  if (!computes(stream)) return;
  with_element(x.dtype, [&](auto t) { cpu::split_norm_moments<decltype(t)>(x, moments); });
}

void split_norm_forward(const Stream& stream, const SplitNormForward& a) {
  const std::int64_t rows = a.x.shape.rows(), width = a.x.shape.back();
  const DType sum = sum_dtype_of(a.x.dtype);
  check_tensor(a.x, a.x.dtype, rows * width, "x");
  check_tensor(a.out, a.x.dtype, rows * width, "out");
  check_tensor(a.weight, a.x.dtype, width, "weight");
  check_tensor(a.bias, a.x.dtype, width, "bias");
  check_tensor(a.moments, sum, a.moments.shape[0] * rows * 2, "moments");
  check_tensor(a.mean, sum, rows, "mean");
  check_tensor(a.rstd, sum, rows, "rstd");
  stream.count(4 * elements(a.x), 2 * as_bytes(a.x) + as_bytes(a.moments));
  if (on_cuda(stream)) return cuda::split_norm_forward(stream, a);
  if (!computes(stream)) return;
  with_element(a.x.dtype, [&](auto t) { cpu::split_norm_forward<decltype(t)>(a); });
}

std::int64_t split_norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width) {
  if (stream.device().plans_for() == DeviceKind::cuda)
    return cuda::NormBackwardPlan(rows, width).workspace_bytes();
  return cpu::split_norm_workspace(rows, width);
}

void split_norm_sums(const Stream& stream, const SplitNormBackward& a) {
  check_backward(a);
  stream.count(5 * elements(a.x), 2 * as_bytes(a.x));
  if (on_cuda(stream)) return cuda::split_norm_sums(stream, a);
  if (!computes(stream)) return;
  with_element(a.x.dtype, [&](auto t) { cpu::split_norm_sums<decltype(t)>(a); });
}

void split_norm_backward(const Stream& stream, const SplitNormBackward& a) {
  check_backward(a);
  const std::int64_t rows = a.x.shape.rows(), width = a.x.shape.back();
  CHOIR_CHECK(a.width >= width, "{} channels of {}", width, a.width);
  check_tensor(a.d_x, a.x.dtype, rows * width, "d_x");
  check_tensor(a.d_weight, sum_dtype_of(a.x.dtype), width, "d_weight");
  check_tensor(a.d_bias, sum_dtype_of(a.x.dtype), width, "d_bias");
  check_workspace(a.workspace, split_norm_workspace(stream, rows, width));
  stream.count(10 * elements(a.x), 3 * as_bytes(a.x));
  if (on_cuda(stream)) return cuda::split_norm_backward(stream, a);
  if (!computes(stream)) return;
  with_element(a.x.dtype, [&](auto t) { cpu::split_norm_backward<decltype(t)>(a); });
}

}  // namespace choir::ops
