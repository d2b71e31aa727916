#include "choir/ops/copy_blocks.hpp"

#include "kernels/copy_blocks/copy_blocks.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {

void copy_blocks(const Stream& stream, const CopyBlocks& args) {
  CHOIR_CHECK(args.rows >= 0 && args.blocks >= 0 && args.width >= 0 && args.terms >= 1,
              "{} rows of {} blocks of {} elements, {} terms", args.rows, args.blocks, args.width,
              args.terms);
  CHOIR_CHECK(args.from.group >= 1 && args.to.group >= 1, "groups of {} and {} blocks",
              args.from.group, args.to.group);
  const auto unit = static_cast<std::int64_t>(size_of(args.dtype));
  const double n = static_cast<double>(args.rows * args.blocks * args.width);
  const auto terms = static_cast<double>(args.terms);
  stream.count(n * (terms - 1), n * (terms + 1) * static_cast<double>(unit));
  if (on_cuda(stream)) return cuda::copy_blocks(stream, args);
  if (!computes(stream)) return;
  if (args.terms == 1) return cpu::copy_blocks(args, unit);
  with_element(args.dtype, [&](auto t) { cpu::sum_blocks<decltype(t)>(args); });
}

}  // namespace choir::ops
