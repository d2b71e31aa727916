// Copies of rows and blocks: checks, dispatch, CPU twins and fp64 reference.

#include "kernels/copy/copy.hpp"

#include <cstring>

#include "choir/ops/copy_rows.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {

void copy_rows(const Stream& stream, DType dtype, std::int64_t rows, std::int64_t width,
               const RowBlock& from, const RowBlock& to, const std::int32_t* further) {
  const std::size_t unit = size_of(dtype);
  const std::size_t bytes = static_cast<std::size_t>(width) * unit;
  stream.count(0, 2.0 * static_cast<double>(bytes) * static_cast<double>(rows));
  if (on_cuda(stream))
    return cuda::copy_rows(stream, static_cast<std::int64_t>(unit), rows, width, from, to, further);
  if (!computes(stream)) return;
  CHOIR_CHECK(!further, "a row offset in device memory is for the CUDA device only");
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(to.data);
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(target + static_cast<std::size_t>(r * to.stride) * unit,
                source + static_cast<std::size_t>(r * from.stride) * unit, bytes);
}

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
