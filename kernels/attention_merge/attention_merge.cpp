#include "kernels/attention_merge/attention_merge.hpp"

#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

void check(const AttentionMerge& a) {
  const std::int64_t rows = a.part.shape.rows(), width = a.part.shape.back();
  const DType sums = sum_dtype_of(a.part.dtype);
  CHOIR_CHECK(a.heads >= 1 && width % a.heads == 0 && a.queries >= 1 && rows % a.queries == 0,
              "{} rows of {} with {} heads, {} queries", rows, width, a.heads, a.queries);
  check_tensor(a.part, a.part.dtype, rows * width, "attention over a set of keys");
  check_tensor(a.out, sums, rows * width, "merged attention");
  check_tensor(a.part_log_sum_exp, sums, rows * a.heads, "log_sum_exp of a set of keys");
  check_tensor(a.log_sum_exp, sums, rows * a.heads, "merged log_sum_exp");
}

}  // namespace

void attention_merge(const Stream& stream, const AttentionMerge& args) {
  check(args);
  stream.count(args.first ? 0 : 3.0 * static_cast<double>(args.part.count()),
               as_bytes(args.part) + (args.first ? 1 : 2) * as_bytes(args.out));
  if (on_cuda(stream)) return cuda::attention_merge(stream, args);
  if (!computes(stream)) return;
  with_element(args.part.dtype, [&](auto t) { cpu::attention_merge<decltype(t)>(args); });
}

}  // namespace choir::ops
