#include "choir/ops/norm.hpp"

#include "kernels/dispatch.hpp"
#include "kernels/norm/norm.hpp"

namespace choir::ops {

std::int64_t norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width) {
  if (stream.device().plans_for() == DeviceKind::cuda)
    return cuda::NormBackwardPlan(rows, width).workspace_bytes();
  return cpu::norm_workspace(rows, width);
}

void norm_forward(const Stream& stream, const NormForward& args) {
  const DType dtype = args.residual.dtype, stats = sum_dtype_of(dtype);
  const std::int64_t n = args.residual.count(), rows = args.residual.shape.rows();
  const std::int64_t width = args.residual.shape.back();
  const bool layer = args.kind == Norm::layernorm, adds = !args.delta.empty();
  check_tensor(args.residual, dtype, n, "residual");
  check_optional(args.delta, dtype, n, "delta");
  check_tensor(args.weight, dtype, width, "weight");
  check_optional(args.bias, dtype, width, "bias");
  CHOIR_CHECK(layer || args.bias.empty(), "rmsnorm has no bias");
  if (adds) check_tensor(args.sum, dtype, n, "sum");
  check_tensor(args.out, dtype, n, "out");
  if (layer) check_tensor(args.mean, stats, rows, "mean");
  check_tensor(args.rstd, stats, rows, "rstd");
  stream.count((adds ? 9.0 : 8.0) * static_cast<double>(n),
               (adds ? 4.0 : 2.0) * as_bytes(args.residual) + as_bytes(args.weight) +
                   as_bytes(args.bias) + as_bytes(args.mean) + as_bytes(args.rstd));
  if (on_cuda(stream)) return cuda::norm_forward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::norm_forward<decltype(t)>(args); });
}

void norm_backward(const Stream& stream, const NormBackward& args) {
  const DType dtype = args.d_out.dtype, stats = sum_dtype_of(dtype);
  const std::int64_t n = args.d_out.count(), rows = args.d_out.shape.rows();
  const std::int64_t width = args.d_out.shape.back();
  check_tensor(args.d_out, dtype, n, "d_out");
  check_tensor(args.sum, dtype, n, "sum");
  check_tensor(args.weight, dtype, width, "weight");
  if (args.kind == Norm::layernorm) check_tensor(args.mean, stats, rows, "mean");
  check_tensor(args.rstd, stats, rows, "rstd");
  check_tensor(args.d_sum, dtype, n, "d_sum");
  check_tensor(args.d_weight, stats, width, "d_weight");
  check_optional(args.d_bias, stats, width, "d_bias");
  check_workspace(args.workspace, norm_workspace(stream, rows, width));
  stream.count(14.0 * static_cast<double>(n),
               (args.accumulate ? 4.0 : 3.0) * as_bytes(args.d_out) + as_bytes(args.weight) +
                   as_bytes(args.mean) + as_bytes(args.rstd) + 2 * as_bytes(args.d_weight) +
                   2 * as_bytes(args.d_bias));
  if (on_cuda(stream)) return cuda::norm_backward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::norm_backward<decltype(t)>(args); });
}

}  // namespace choir::ops
