#include "choir/ops/batch_norm.hpp"

#include "kernels/batch_norm/batch_norm.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

void check_frames(const TensorView& x, const std::int32_t* lengths, std::int64_t tokens) {
  CHOIR_CHECK(x.shape.rank() > 0, "batch normalisation of a scalar");
  CHOIR_CHECK(lengths == nullptr || (tokens > 0 && x.shape.rows() % tokens == 0),
              "{} rows are not whole samples of {} frames", x.shape.rows(), tokens);
  check_tensor(x, x.dtype, x.count(), "x");
}

}  // namespace

std::int64_t batch_norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width) {
  if (stream.device().plans_for() == DeviceKind::cuda)
    return cuda::batch_norm_workspace(rows, width);
  return cpu::batch_norm_workspace(rows, width);
}

void batch_norm_forward(const Stream& stream, const BatchNorm& args) {
  const DType dtype = args.x.dtype, stats = sum_dtype_of(dtype);
  check_frames(args.x, args.lengths, args.tokens);
  const std::int64_t n = args.x.count(), width = args.x.shape.back();
  check_tensor(args.y, dtype, n, "y");
  check_tensor(args.weight, dtype, width, "weight");
  check_tensor(args.bias, dtype, width, "bias");
  check_tensor(args.mean, stats, width, "mean");
  check_tensor(args.rstd, stats, width, "rstd");
  check_tensor(args.running_mean, stats, width, "running_mean");
  check_tensor(args.running_variance, stats, width, "running_variance");
  check_optional(args.frames, stats, 1, "frames");
  if (args.training)
    check_workspace(args.workspace, batch_norm_workspace(stream, args.x.shape.rows(), width));
  stream.count((args.training ? 8.0 : 4.0) * static_cast<double>(n),
               (args.training ? 3.0 : 2.0) * as_bytes(args.x) + 2 * as_bytes(args.weight) +
                   4 * as_bytes(args.mean));
  if (on_cuda(stream)) return cuda::batch_norm_forward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::batch_norm_forward<decltype(t)>(args); });
}

void batch_norm_backward(const Stream& stream, const BatchNormBackward& args) {
  const DType dtype = args.x.dtype, stats = sum_dtype_of(dtype);
  check_frames(args.x, args.lengths, args.tokens);
  const std::int64_t n = args.x.count(), width = args.x.shape.back();
  check_tensor(args.d_y, dtype, n, "d_y");
  check_tensor(args.d_x, dtype, n, "d_x");
  check_tensor(args.weight, dtype, width, "weight");
  check_tensor(args.mean, stats, width, "mean");
  check_tensor(args.rstd, stats, width, "rstd");
  check_optional(args.d_weight, stats, width, "d_weight");
  check_optional(args.d_bias, stats, width, "d_bias");
  check_workspace(args.workspace, batch_norm_workspace(stream, args.x.shape.rows(), width));
  stream.count(14.0 * static_cast<double>(n),
               5.0 * as_bytes(args.x) + as_bytes(args.weight) + 2 * as_bytes(args.mean) +
                   2 * as_bytes(args.d_weight) + 2 * as_bytes(args.d_bias));
  if (on_cuda(stream)) return cuda::batch_norm_backward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::batch_norm_backward<decltype(t)>(args); });
}

}  // namespace choir::ops
