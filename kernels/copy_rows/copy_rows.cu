#include "kernels/copy_rows/copy_rows.cuh"

#include "kernels/copy_rows/copy_rows.hpp"

namespace choir::cuda {
namespace {

/// Addresses as bytes.
struct Bytes {
  const std::byte* from;
  std::byte* to;
  std::int64_t from_stride, to_stride, width;
  const std::int32_t* further;

  template <class Word>
  bool whole() const {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(Word));
    return reinterpret_cast<std::uintptr_t>(from) % sizeof(Word) == 0 &&
           reinterpret_cast<std::uintptr_t>(to) % sizeof(Word) == 0 && from_stride % kSize == 0 &&
           to_stride % kSize == 0 && width % kSize == 0;
  }
};

template <class Word>
void copy_words(const Stream& stream, std::int64_t all_rows, const Bytes& b) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Word));
  const std::int64_t per_row = b.width / kSize;
  for_row_parts(all_rows, per_row, 1, [&](std::int64_t first, std::int64_t rows) {
    launch_small_early(
        stream, "copy_rows", copy_rows_kernel<Word>,
        {elementwise_blocks(rows * per_row), kElementwiseThreads}, rows * per_row, Divisor(per_row),
        reinterpret_cast<const Word*>(b.from + first * b.from_stride), b.from_stride / kSize,
        reinterpret_cast<Word*>(b.to + first * b.to_stride), b.to_stride / kSize, b.further);
  });
}

}  // namespace

void copy_rows(const Stream& stream, std::int64_t unit, std::int64_t rows, std::int64_t width,
               const ops::RowBlock& from, const ops::RowBlock& to, const std::int32_t* further) {
  if (rows == 0 || width == 0) return;
  const Bytes bytes{static_cast<const std::byte*>(from.data),
                    static_cast<std::byte*>(to.data),
                    from.stride * unit,
                    to.stride * unit,
                    width * unit,
                    further};
  if (bytes.whole<uint4>()) return copy_words<uint4>(stream, rows, bytes);
  if (bytes.whole<std::uint32_t>()) return copy_words<std::uint32_t>(stream, rows, bytes);
  if (bytes.whole<std::uint16_t>()) return copy_words<std::uint16_t>(stream, rows, bytes);
  copy_words<std::uint8_t>(stream, rows, bytes);
}

}  // namespace choir::cuda
