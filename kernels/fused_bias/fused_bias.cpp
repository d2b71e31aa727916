// Gradients with the sums of a bias: checks and dispatch. Without a fused kernel the operation and
// the sum are two calls, as they always are on the CPU.

#include "kernels/fused_bias/fused_bias.hpp"

#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

/// Runs `fused` if the device has it for these tensors, otherwise `plain` and the sum of the rows
/// of `gradient`. A plan for a GPU counts the work of the fused form.
template <class Fused, class Plain>
void run(const Stream& stream, const TensorView& gradient, const BiasSums& bias, const Fused& fused,
         const Plain& plain) {
  const std::int64_t rows = gradient.shape.rows(), width = gradient.shape.back();
  check_tensor(gradient, gradient.dtype, gradient.count(), "gradient");
  check_tensor(bias.d_bias, sum_dtype_of(gradient.dtype), width, "d_bias");
  check_workspace(bias.workspace, bias_gradient_workspace(stream, rows, width));
  if (gradient.count() == 0) return;
  const bool one_kernel = on_cuda(stream) && fused();
  if (!one_kernel) plain();
  if (one_kernel ||
      (stream.kind() == DeviceKind::null && stream.device().plans_for() == DeviceKind::cuda)) {
    stream.count(static_cast<double>(gradient.count()), 2 * as_bytes(bias.d_bias));
    return;
  }
  bias_gradient(stream, gradient, bias.d_bias, bias.workspace);
}

}  // namespace

void activation_backward(const Stream& stream, Activation kind, const TensorView& x,
                         const TensorView& d_y, const TensorView& d_x, const BiasSums& bias) {
  CHOIR_CHECK(!is_gated(kind), "the gradient of a bias below a gated kind");
  check_tensor(x, d_x.dtype, d_x.count(), "x");
  check_tensor(d_y, d_x.dtype, d_x.count(), "d_y");
  run(
      stream, d_x, bias,
      [&] {
        const bool done = cuda::activation_backward(stream, kind, x, d_y, d_x, bias);
        if (done) stream.count(30.0 * static_cast<double>(d_x.count()), 3 * as_bytes(d_x));
        return done;
      },
      [&] { activation_backward(stream, kind, x, d_y, d_x); });
}

void glu_backward(const Stream& stream, const TensorView& x, const TensorView& d_y,
                  const TensorView& d_x, const std::int32_t* lengths, std::int64_t tokens,
                  const BiasSums& bias) {
  check_tensor(x, d_x.dtype, d_x.count(), "x");
  check_tensor(d_y, d_x.dtype, d_x.count() / 2, "d_y");
  CHOIR_CHECK(d_x.shape.back() == 2 * d_y.shape.back() && d_x.data != d_y.data,
              "gradient of width {} of a gate of width {}", d_x.shape.back(), d_y.shape.back());
  CHOIR_CHECK(lengths == nullptr || (tokens > 0 && d_y.shape.rows() % tokens == 0),
              "{} rows are not whole samples of {} frames", d_y.shape.rows(), tokens);
  run(
      stream, d_x, bias,
      [&] {
        const bool done = cuda::glu_backward(stream, x, d_y, d_x, lengths, tokens, bias);
        if (done)
          stream.count(30.0 * static_cast<double>(d_y.count()),
                       as_bytes(x) + as_bytes(d_y) + as_bytes(d_x));
        return done;
      },
      [&] { glu_backward(stream, x, d_y, d_x, lengths, tokens); });
}

void dropout(const Stream& stream, const Dropout& args, const BiasSums& bias) {
  check_tensor(args.in, args.out.dtype, args.out.count(), "in");
  CHOIR_CHECK(args.probability >= 0 && args.probability <= 1 - 0x1p-32, "probability {}",
              args.probability);
  CHOIR_CHECK(args.tokens >= 1 && args.first_column % 4 == 0, "{} tokens, features from {} on",
              args.tokens, args.first_column);
  run(
      stream, args.out, bias,
      [&] {
        const bool done = cuda::dropout(stream, args, bias);
        if (done) stream.count(2.0 * static_cast<double>(args.in.count()), 2 * as_bytes(args.in));
        return done;
      },
      [&] { dropout(stream, args); });
}

}  // namespace choir::ops
