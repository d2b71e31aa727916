#include "choir/ops/reduce.hpp"

#include "kernels/bias_gradient/bias_gradient.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/reduce/reduce.hpp"

namespace choir::ops {
namespace {

void check_real(const TensorView& x, const char* name) {
  check_tensor(x, x.dtype, x.count(), name);
  CHOIR_CHECK(x.dtype == DType::f32 || x.dtype == DType::f64, "{} has type {}", name,
              name_of(x.dtype));
}

double elements(const TensorView& x) {
  return static_cast<double>(x.count());
}

/// Checks tensors of one type, each with one sum per chunk of `chunk` elements (0: one sum), and
/// counts their cost.
void take(const Stream& stream, std::span<const Summed> tensors, std::int64_t chunk, double flops) {
  double of_all = 0, bytes = 0;
  for (const Summed& one : tensors) {
    const std::int64_t n = one.x.count();
    check_real(one.x, "x");
    check_tensor(one.x, tensors.front().x.dtype, n, "x");
    check_tensor(one.sums, DType::f64, chunk == 0 ? 1 : (n + chunk - 1) / chunk, "sums");
    of_all += flops * elements(one.x), bytes += as_bytes(one.x) + as_bytes(one.sums);
  }
  stream.count(of_all, bytes);
}

}  // namespace

void sums_of_squares(const Stream& stream, std::span<const Summed> tensors) {
  if (tensors.empty()) return;
  take(stream, tensors, kNormChunk, 2);
  if (on_cuda(stream)) return cuda::sums_of_squares(stream, tensors);
  if (!computes(stream)) return;
  tensors.front().x.dtype == DType::f64 ? cpu::sums_of_squares<double>(tensors)
                                        : cpu::sums_of_squares<float>(tensors);
}

void tree_sums(const Stream& stream, std::span<const Summed> tensors) {
  if (tensors.empty()) return;
  take(stream, tensors, 0, 1);
  if (on_cuda(stream)) return cuda::tree_sums(stream, tensors);
  if (!computes(stream)) return;
  tensors.front().x.dtype == DType::f64 ? cpu::tree_sums<double>(tensors)
                                        : cpu::tree_sums<float>(tensors);
}

std::int64_t bias_gradient_workspace(const Stream& stream, std::int64_t rows, std::int64_t width) {
  if (stream.device().plans_for() == DeviceKind::cuda)
    return cuda::BiasGradientPlan(rows, width).workspace_bytes();
  return cpu::bias_gradient_workspace(rows, width);
}

void bias_gradient(const Stream& stream, const TensorView& d_y, const TensorView& d_bias,
                   const TensorView& workspace) {
  const std::int64_t width = d_y.shape.back();
  check_tensor(d_y, d_y.dtype, d_y.count(), "d_y");
  check_tensor(d_bias, sum_dtype_of(d_y.dtype), width, "d_bias");
  check_workspace(workspace, bias_gradient_workspace(stream, d_y.shape.rows(), width));
  stream.count(elements(d_y), as_bytes(d_y) + 2 * as_bytes(d_bias));
  if (on_cuda(stream)) return cuda::bias_gradient(stream, d_y, d_bias, workspace);
  if (!computes(stream)) return;
  with_element(d_y.dtype, [&](auto t) { cpu::bias_gradient<decltype(t)>(d_y, d_bias, workspace); });
}

void add(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  check_tensor(a, a.dtype, a.count(), "a");
  check_tensor(b, a.dtype, a.count(), "b");
  check_tensor(out, a.dtype, a.count(), "out");
  stream.count(elements(a), 3 * as_bytes(a));
  if (on_cuda(stream)) return cuda::add(stream, a, b, out);
  if (!computes(stream)) return;
  with_element(a.dtype, [&](auto t) { cpu::add<decltype(t)>(a, b, out); });
}

void cast(const Stream& stream, const TensorView& from, const TensorView& to) {
  check_tensor(from, from.dtype, from.count(), "from");
  check_tensor(to, to.dtype, from.count(), "to");
  stream.count(0, as_bytes(from) + as_bytes(to));
  if (on_cuda(stream)) return cuda::cast(stream, from, to);
  if (!computes(stream)) return;
  with_element(from.dtype, [&](auto f) {
    with_element(to.dtype, [&](auto t) { cpu::cast<decltype(f), decltype(t)>(from, to); });
  });
}

void scale(const Stream& stream, const TensorView& x, double factor) {
  check_real(x, "x");
  stream.count(elements(x), 2 * as_bytes(x));
  if (on_cuda(stream)) return cuda::scale(stream, x, factor);
  if (!computes(stream)) return;
  x.dtype == DType::f64 ? cpu::scale<double>(x, factor) : cpu::scale<float>(x, factor);
}

void zero(const Stream& stream, const TensorView& x) {
  check_tensor(x, x.dtype, x.count(), "x");
  stream.count(0, as_bytes(x));
  if (on_cuda(stream)) return cuda::zero(stream, x);
  if (computes(stream)) cpu::zero(x);
}

void copy(const Stream& stream, const TensorView& from, const TensorView& to) {
  check_tensor(from, from.dtype, from.count(), "from");
  check_tensor(to, from.dtype, from.count(), "to");
  stream.count(0, 2 * as_bytes(from));
  if (on_cuda(stream)) return cuda::copy(stream, from, to);
  if (computes(stream)) cpu::copy(from, to);
}

}  // namespace choir::ops
