#include "kernels/copy_blocks/copy_blocks.cuh"

#include "kernels/copy_blocks/copy_blocks.hpp"
#include "kernels/cuda/types.cuh"

namespace choir::cuda {
namespace {

/// True if every block of every row consists of whole packs of `bytes`, with elements of `unit`
/// bytes.
bool whole(const ops::CopyBlocks& args, std::int64_t unit, std::int64_t bytes) {
  const auto fits = [&](const ops::BlockPlace& p) {
    return reinterpret_cast<std::uintptr_t>(p.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
           p.row_stride * unit % bytes == 0 && p.stride * unit % bytes == 0 &&
           p.group_stride * unit % bytes == 0;
  };
  return args.width * unit % bytes == 0 && fits(args.from) && fits(args.to);
}

/// The layout from `row` on in words, for elements of `unit` bytes.
template <class Word>
Blocks<Word> in_words(const ops::BlockPlace& p, std::int64_t unit, std::int64_t row) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Word));
  const auto words = [&](std::int64_t stride) { return stride * unit / kSize; };
  return {static_cast<Word*>(p.data) + words(row * p.row_stride), words(p.row_stride),
          words(p.stride), words(p.group_stride), Divisor(p.group)};
}

template <class Word>
void copy_words(const Stream& stream, const ops::CopyBlocks& args, std::int64_t unit) {
  const std::int64_t per_block = args.width * unit / static_cast<std::int64_t>(sizeof(Word));
  const std::int64_t per_row = per_block * args.blocks;
  for_row_parts(args.rows, per_row, 1, [&](std::int64_t first, std::int64_t rows) {
    launch(stream, "copy_blocks", copy_blocks_kernel<Word>,
           {elementwise_blocks(rows * per_row), kElementwiseThreads}, rows * per_row,
           Divisor(per_block), Divisor(args.blocks), in_words<Word>(args.from, unit, first),
           in_words<Word>(args.to, unit, first));
  });
}

template <class T, bool kPacked>
void sum_packs(const Stream& stream, const ops::CopyBlocks& args) {
  const std::int64_t per_block = args.width / Access<T, kPacked>::kWide;
  const std::int64_t per_row = per_block * args.blocks;
  for_row_parts(args.rows, per_row, 1, [&](std::int64_t first, std::int64_t rows) {
    launch(stream, "sum_blocks", sum_blocks_kernel<T, kPacked>,
           {elementwise_blocks(rows * per_row), kElementwiseThreads}, rows * per_row,
           Divisor(per_block), Divisor(args.blocks), static_cast<int>(args.terms),
           in_words<T>(args.from, sizeof(T), first), in_words<T>(args.to, sizeof(T), first));
  });
}

}  // namespace

void copy_blocks(const Stream& stream, const ops::CopyBlocks& args) {
  const auto unit = static_cast<std::int64_t>(size_of(args.dtype));
  if (args.rows * args.blocks * args.width == 0) return;
  if (args.terms > 1)
    return with_element(args.dtype, [&](auto t) {
      using T = decltype(t);
      with_bool(whole(args, unit, 16),
                [&](auto packed) { sum_packs<T, decltype(packed)::value>(stream, args); });
    });
  if (whole(args, unit, 16)) return copy_words<uint4>(stream, args, unit);
  if (whole(args, unit, 4)) return copy_words<std::uint32_t>(stream, args, unit);
  if (whole(args, unit, 2)) return copy_words<std::uint16_t>(stream, args, unit);
  copy_words<std::uint8_t>(stream, args, unit);
}

}  // namespace choir::cuda
