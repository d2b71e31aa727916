#include "choir/ops/cross_entropy.hpp"

#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/embedding/embedding.hpp"

namespace choir::ops {
namespace {

template <class Args>
void check_rows(const Args& args) {
  const DType dtype = args.logits.dtype;
  const std::int64_t rows = args.logits.shape.rows();
  check_tensor(args.logits, dtype, rows * args.logits.shape.back(), "logits");
  check_tensor(args.targets, DType::i32, rows, "targets");
  check_tensor(args.losses, sum_dtype_of(dtype), rows, "losses");
  if (!args.weights.empty()) check_tensor(args.weights, DType::f32, rows, "weights");
  CHOIR_CHECK(args.label_smoothing >= 0 && args.label_smoothing < 1, "label smoothing of {}",
              args.label_smoothing);
}

void check_targets(const TensorView& targets, std::int64_t vocabulary) {
  if (targets.count() == 0) return;
  const auto range = cpu::id_range(targets);
  CHOIR_CHECK(range.highest < vocabulary, "target {} for a vocabulary of {}", range.highest,
              vocabulary);
}

void check_parallel(const ParallelCrossEntropy& args) {
  check_rows(args);
  const DType sums = sum_dtype_of(args.logits.dtype);
  const std::int64_t rows = args.logits.shape.rows();
  check_tensor(args.local_maxima, sums, rows, "local_maxima");
  check_tensor(args.maxima, sums, rows, "maxima");
  check_tensor(args.sums, sums, rows * args.sums_per_row(), "sums");
  CHOIR_CHECK(args.vocabulary >= 1 && args.first_column >= 0,
              "columns from {} of a vocabulary of {}", args.first_column, args.vocabulary);
}

/// FLOPs of one pass over the logits: exp, difference, sum.
double pass_flops(const TensorView& logits) {
  return 20.0 * static_cast<double>(logits.count());
}

}  // namespace

void cross_entropy(const Stream& stream, const CrossEntropy& args) {
  check_rows(args);
  CHOIR_CHECK(args.vocabulary >= 1 && args.vocabulary <= args.logits.shape.back(),
              "vocabulary {} in rows of {}", args.vocabulary, args.logits.shape.back());
  const double passes = args.write_gradient ? 2 : 1;
  stream.count(passes * pass_flops(args.logits),
               passes * as_bytes(args.logits) + as_bytes(args.targets) + as_bytes(args.losses));
  if (on_cuda(stream)) return cuda::cross_entropy(stream, args);
  if (!computes(stream)) return;
  check_targets(args.targets, args.vocabulary);
  with_element(args.logits.dtype, [&](auto t) { cpu::cross_entropy<decltype(t)>(args); });
}

void cross_entropy_maxima(const Stream& stream, const ParallelCrossEntropy& args) {
  check_parallel(args);
  stream.count(pass_flops(args.logits), as_bytes(args.logits) + as_bytes(args.targets) +
                                            2 * as_bytes(args.maxima) + as_bytes(args.sums));
  if (on_cuda(stream)) return cuda::cross_entropy_maxima(stream, args);
  if (!computes(stream)) return;
  check_targets(args.targets, args.vocabulary);
  with_element(args.logits.dtype, [&](auto t) { cpu::cross_entropy_maxima<decltype(t)>(args); });
}

void cross_entropy_sums(const Stream& stream, const ParallelCrossEntropy& args) {
  check_parallel(args);
  stream.count(20.0 * static_cast<double>(args.maxima.count()),
               as_bytes(args.targets) + 2 * as_bytes(args.maxima) + 2 * as_bytes(args.sums));
  if (on_cuda(stream)) return cuda::cross_entropy_sums(stream, args);
  if (!computes(stream)) return;
  with_element(args.logits.dtype, [&](auto t) { cpu::cross_entropy_sums<decltype(t)>(args); });
}

void cross_entropy_finish(const Stream& stream, const ParallelCrossEntropy& args) {
  check_parallel(args);
  const double writes = args.write_gradient ? 1 : 0;
  stream.count(writes * pass_flops(args.logits),
               writes * 2 * as_bytes(args.logits) + as_bytes(args.targets) + as_bytes(args.losses) +
                   as_bytes(args.maxima) + as_bytes(args.sums));
  if (on_cuda(stream)) return cuda::cross_entropy_finish(stream, args);
  if (!computes(stream)) return;
  with_element(args.logits.dtype, [&](auto t) { cpu::cross_entropy_finish<decltype(t)>(args); });
}

}  // namespace choir::ops
