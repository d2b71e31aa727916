#include "kernels/copy_blocks/copy_blocks.hpp"

namespace choir::ref {

void copy_blocks(const ops::CopyBlocks& args) {
  const auto at = [](const ops::BlockPlace& place, std::int64_t row, std::int64_t block,
                     std::int64_t element) -> double& {
    return static_cast<double*>(
        place.data)[row * place.row_stride + block / place.group * place.group_stride +
                    block % place.group * place.stride + element];
  };
  for (std::int64_t row = 0; row < args.rows; ++row)
    for (std::int64_t block = 0; block < args.blocks; ++block)
      for (std::int64_t e = 0; e < args.width; ++e) {
        double sum = 0;
        for (std::int64_t j = 0; j < args.terms; ++j)
          sum += at(args.from, row, block * args.terms + j, e);
        at(args.to, row, block, e) = sum;
      }
}

}  // namespace choir::ref
