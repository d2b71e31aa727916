#include "choir/ops/cross_entropy.hpp"

#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "src/ops/dispatch.hpp"

namespace choir::ops {

void cross_entropy(const Stream& stream, const CrossEntropy& args) {
  const DType dtype = args.logits.dtype;
  const std::int64_t rows = args.logits.shape.rows(), columns = args.logits.shape.back();
  check_tensor(args.logits, dtype, rows * columns, "logits");
  check_tensor(args.targets, DType::i32, rows, "targets");
  check_tensor(args.losses, sum_dtype_of(dtype), rows, "losses");
  CHOIR_CHECK(args.vocabulary >= 1 && args.vocabulary <= columns, "vocabulary {} in rows of {}",
              args.vocabulary, columns);
  stream.count((args.write_gradient ? 40.0 : 20.0) * static_cast<double>(rows * columns),
               (args.write_gradient ? 2.0 : 1.0) * as_bytes(args.logits) + as_bytes(args.targets) +
                   as_bytes(args.losses));
  if (!computes(stream)) return;
  const auto range = cpu::id_range(args.targets);
  CHOIR_CHECK(rows == 0 || range.highest < args.vocabulary, "target {} for a vocabulary of {}",
              range.highest, args.vocabulary);
  with_element(dtype, [&](auto t) { cpu::cross_entropy<decltype(t)>(args); });
}

}  // namespace choir::ops
