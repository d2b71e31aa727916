#include "choir/ops/l1_loss.hpp"

#include <cmath>

#include "kernels/dispatch.hpp"
#include "kernels/l1_loss/l1_loss.hpp"

namespace choir::ops {

void l1_loss(const Stream& stream, const L1Loss& args) {
  const DType dtype = args.predicted.dtype, sums = sum_dtype_of(dtype);
  const std::int64_t rows = args.predicted.shape.rows();
  check_tensor(args.predicted, dtype, args.predicted.count(), "predicted");
  check_tensor(args.target, sums, args.predicted.count(), "target");
  check_tensor(args.losses, sums, rows, "losses");
  CHOIR_CHECK(args.tokens >= 1 && rows % args.tokens == 0, "{} rows of sequences of {}", rows,
              args.tokens);
  CHOIR_CHECK(std::isfinite(args.factor) && std::isfinite(args.scale), "factor {}, scale {}",
              args.factor, args.scale);
  stream.count(3 * static_cast<double>(args.predicted.count()),
               (args.write_gradient ? 2 : 1) * as_bytes(args.predicted) + as_bytes(args.target) +
                   as_bytes(args.losses));
  if (rows == 0) return;
  if (on_cuda(stream)) return cuda::l1_loss(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::l1_loss<decltype(t)>(args); });
}

}  // namespace choir::ops
