#include "choir/ops/gemm_batched.hpp"

#include "kernels/dispatch.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir::ops {
namespace {

/// The matrices of one operand: rows, columns, elements between matrices.
struct Matrices {
  std::int64_t rows, columns, stride;

  Matrices(const TensorView& x, std::int64_t batch, bool transposed)
      : rows(x.shape[x.shape.rank() - 2]), columns(x.shape.back()), stride(rows * columns) {
    CHOIR_CHECK(x.shape.rank() == 2 || (x.shape.rank() == 3 && x.shape[0] == batch),
                "{} in a product of {} matrices", to_string(x.shape), batch);
    if (x.shape.rank() == 2) stride = 0;
    if (transposed) std::swap(rows, columns);
  }
};

GemmArgs checked_batch(const TensorView& a, const TensorView& b, const TensorView& c,
                       const BatchedGemmOptions& options) {
  CHOIR_CHECK(c.shape.rank() == 3, "{} for products of matrices", to_string(c.shape));
  const std::int64_t batch = c.shape[0];
  const Matrices left(a, batch, options.transpose_a), right(b, batch, options.transpose_b);
  GemmArgs args{.m = c.shape[1], .n = c.shape[2], .k = left.columns};
  CHOIR_CHECK(left.rows == args.m && right.rows == args.k && right.columns == args.n,
              "products of {}{} and {}{} into {}", to_string(a.shape),
              options.transpose_a ? "^T" : "", to_string(b.shape), options.transpose_b ? "^T" : "",
              to_string(c.shape));
  const bool narrow = a.dtype == DType::bf16 || a.dtype == DType::f16;
  CHOIR_CHECK(b.dtype == a.dtype && (c.dtype == a.dtype || (narrow && c.dtype == DType::f32)),
              "products of {} and {} into {}", name_of(a.dtype), name_of(b.dtype),
              name_of(c.dtype));
  args.transpose_a = options.transpose_a, args.transpose_b = options.transpose_b;
  args.accumulate = options.accumulate;
  args.in = a.dtype, args.out = c.dtype;
  args.a = a.data, args.b = b.data, args.c = c.data;
  args.batch = batch;
  args.stride_a = left.stride, args.stride_b = right.stride, args.stride_c = args.m * args.n;
  return args;
}

}  // namespace

void gemm_batched(const Stream& stream, const TensorView& a, const TensorView& b,
                  const TensorView& c, const BatchedGemmOptions& options) {
  CHOIR_CHECK(!a.empty() && !b.empty() && !c.empty(), "products of an empty tensor");
  const GemmArgs args = checked_batch(a, b, c, options);
  count_product(stream, args,
                as_bytes(a) + as_bytes(b) + (options.accumulate ? 2 : 1) * as_bytes(c));
  if (stream.kind() == DeviceKind::null || c.count() == 0) return;
  CHOIR_CHECK(args.k > 0, "products over an empty inner extent");
  if (stream.kind() == DeviceKind::cuda) return gemm_cuda(stream, args);
  gemm_batched_cpu(stream.device().plans(), args);
}

}  // namespace choir::ops
