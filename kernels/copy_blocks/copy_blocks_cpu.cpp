#include <cstring>

#include "kernels/copy_blocks/copy_blocks.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"

namespace choir::cpu {
namespace {

std::int64_t offset(const ops::BlockPlace& place, std::int64_t row, std::int64_t block) {
  return row * place.row_stride + block / place.group * place.group_stride +
         block % place.group * place.stride;
}

}  // namespace

void copy_blocks(const ops::CopyBlocks& args, std::int64_t unit) {
  const auto* from = static_cast<const std::byte*>(args.from.data);
  auto* to = static_cast<std::byte*>(args.to.data);
  const auto bytes = static_cast<std::size_t>(args.width * unit);
  parallel_ranges(args.rows, args.blocks * args.width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row)
      for (std::int64_t block = 0; block < args.blocks; ++block)
        std::memcpy(to + offset(args.to, row, block) * unit,
                    from + offset(args.from, row, block) * unit, bytes);
  });
}

template <class T>
void sum_blocks(const ops::CopyBlocks& args) {
  const auto* from = static_cast<const T*>(args.from.data);
  auto* to = static_cast<T*>(args.to.data);
  const std::int64_t row_elements = args.blocks * args.terms * args.width;
  parallel_ranges(args.rows, row_elements, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row)
      for (std::int64_t block = 0; block < args.blocks; ++block)
        for_vectors<T>(0, args.width, [&](std::int64_t e, auto access) {
          Vec<T> sum{};
          for (std::int64_t j = 0; j < args.terms; ++j)
            sum += access.load(from + offset(args.from, row, block * args.terms + j) + e);
          access.store(to + offset(args.to, row, block) + e, sum);
        });
  });
}

template void sum_blocks<double>(const ops::CopyBlocks&);
template void sum_blocks<float>(const ops::CopyBlocks&);
template void sum_blocks<bf16>(const ops::CopyBlocks&);
template void sum_blocks<f16>(const ops::CopyBlocks&);

}  // namespace choir::cpu
