#include "choir/ops/dropout.hpp"

#include <cmath>

#include "kernels/dispatch.hpp"
#include "kernels/dropout/dropout.hpp"

namespace choir::ops {

void dropout(const Stream& stream, const Dropout& args) {
  check_tensor(args.in, args.in.dtype, args.in.count(), "in");
  check_tensor(args.out, args.in.dtype, args.in.count(), "out");
  // NaN is refused, too. Above 1 - 2^-32 the threshold would not fit into 32 bits.
  CHOIR_CHECK(args.probability >= 0 && args.probability <= 1 - 0x1p-32, "probability {}",
              args.probability);
  CHOIR_CHECK(std::isfinite(args.factor), "factor {}", args.factor);
  CHOIR_CHECK(args.first_column >= 0 && args.first_column % 4 == 0, "features from {} on",
              args.first_column);
  CHOIR_CHECK(args.tokens >= 1 && args.first_sample >= 0 && args.first_position >= 0,
              "{} tokens from sample {}, position {}", args.tokens, args.first_sample,
              args.first_position);
  stream.count(2.0 * static_cast<double>(args.in.count()), 2 * as_bytes(args.in));
  if (on_cuda(stream)) return cuda::dropout(stream, args);
  if (!computes(stream)) return;
  with_element(args.in.dtype, [&](auto t) { cpu::dropout<decltype(t)>(args); });
}

}  // namespace choir::ops
