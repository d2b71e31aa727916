// Copies on the GPU. The first kernel copies rows of any width between two strided memory areas, in
// the widest words that addresses, strides and width allow. Floor: 2 transfers. It is used for
// key/value caches, where the launch dominates the cost.

#include "kernels/copy/copy.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

/// Strides are in words; fewer than 2^31 words in total.
template <class Word>
__global__ void __launch_bounds__(kElementwiseThreads)
    copy_rows_kernel(std::uint32_t words, Divisor per_row, const Word* from,
                     std::int64_t from_stride, Word* to, std::int64_t to_stride,
                     const std::int32_t* further) {
  let_next_begin();
  wait_for_earlier();
  if (further != nullptr) to += std::int64_t{*further} * per_row.divisor;
  for (std::int64_t i = global_thread(); i < words; i += global_threads()) {
    const std::uint32_t row = per_row.quotient(static_cast<std::uint32_t>(i));
    const std::uint32_t column = per_row.remainder(static_cast<std::uint32_t>(i));
    to[row * to_stride + column] = from[row * from_stride + column];
  }
}

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

// Blocks of rows between two layouts, copied in the widest words that all addresses and strides
// allow, or summed pack by pack. Floor: 1 read per term, 1 write. Neighbouring threads take
// neighbouring words of a block, so blocks of 128 bytes (a head of 64 halves) are whole cache
// lines.

/// ops::BlockPlace in units of words.
template <class Word>
struct Blocks {
  Word* data;
  std::int64_t row_stride, stride, group_stride;
  Divisor group;
  __device__ Word* at(std::uint32_t row, std::uint32_t block) const {
    return data + row * row_stride + group.quotient(block) * group_stride +
           group.remainder(block) * stride;
  }
};

/// Fewer than 2^31 words in total.
template <class Word>
__global__ void __launch_bounds__(kElementwiseThreads)
    copy_blocks_kernel(std::uint32_t words, Divisor per_block, Divisor blocks, Blocks<Word> from,
                       Blocks<Word> to) {
  wait_for_earlier();
  for (std::int64_t i = global_thread(); i < words; i += global_threads()) {
    const std::uint32_t in_order = per_block.quotient(static_cast<std::uint32_t>(i));
    const std::uint32_t word = per_block.remainder(static_cast<std::uint32_t>(i));
    const std::uint32_t row = blocks.quotient(in_order), block = blocks.remainder(in_order);
    to.at(row, block)[word] = from.at(row, block)[word];
  }
}

/// A thread sums one pack or one element. Fewer than 2^31 of them in total.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    sum_blocks_kernel(std::uint32_t items, Divisor per_block, Divisor blocks, int terms,
                      Blocks<T> from, Blocks<T> to) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  for (std::int64_t i = global_thread(); i < items; i += global_threads()) {
    const std::uint32_t in_order = per_block.quotient(static_cast<std::uint32_t>(i));
    const std::int64_t element =
        std::int64_t{per_block.remainder(static_cast<std::uint32_t>(i))} * kWide;
    const std::uint32_t row = blocks.quotient(in_order), block = blocks.remainder(in_order);
    float sum[kWide] = {};
    for (int j = 0; j < terms; ++j) {
      float x[kWide];
      Wide::load(from.at(row, block * terms + j) + element, x);
#pragma unroll
      for (int e = 0; e < kWide; ++e) sum[e] += x[e];
    }
    Wide::store(to.at(row, block) + element, sum);
  }
}

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

// Rows of audio among the rows of a prompt. A thread has one pack of 16 bytes, or one element, of a
// row; threads of rows without audio do nothing. Floor per element of audio: forward 3 transfers,
// backward 2; reading the index once per pack is served by L1.

/// The rows of this rank in all audio.
struct AudioRows {
  std::int64_t first, rows;
  /// Returns -1 if the row is not on this rank.
  __device__ std::int64_t at(std::int32_t index) const {
    const std::int64_t a = -1 - std::int64_t{index} - first;
    return index < 0 && a >= 0 && a < rows ? a : -1;
  }
};

/// Fewer than 2^31 packs in total.
template <class T, bool kPacked>
__global__ void CHOIR_ALONE_ON_BLACKWELL(kElementwiseThreads)
    splice_kernel(std::uint32_t items, Divisor per_row, std::int64_t width, AudioRows here,
                  const std::int32_t* index, const T* audio, T* out) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  for (std::int64_t i = global_thread(); i < items; i += global_threads()) {
    const std::uint32_t row = per_row.quotient(static_cast<std::uint32_t>(i));
    const std::int64_t from = here.at(index[row]);
    if (from < 0) continue;
    const std::int64_t column =
        std::int64_t{per_row.remainder(static_cast<std::uint32_t>(i))} * kWide;
    float x[kWide], y[kWide];
    Wide::load(audio + from * width + column, x);
    Wide::load(out + i * kWide, y);
#pragma unroll
    for (int k = 0; k < kWide; ++k) y[k] += x[k];
    Wide::store(out + i * kWide, y);
  }
}

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    splice_gradient_kernel(std::uint32_t items, Divisor per_row, std::int64_t width, AudioRows here,
                           const std::int32_t* index, const T* d_out, T* d_audio) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  for (std::int64_t i = global_thread(); i < items; i += global_threads()) {
    const std::uint32_t row = per_row.quotient(static_cast<std::uint32_t>(i));
    const std::int64_t to = here.at(index[row]);
    if (to < 0) continue;
    const std::int64_t column =
        std::int64_t{per_row.remainder(static_cast<std::uint32_t>(i))} * kWide;
    Wide::write(d_audio + to * width + column, Wide::read(d_out + i * kWide));
  }
}

namespace {

/// Calls f(packs fit, items per row, first row, rows), part by part.
template <class T, class F>
void for_parts(const TensorView& index, const TensorView& rows, const TensorView& audio,
               const F& f) {
  const std::int64_t width = rows.shape.back(), count = index.count();
  if (count * width == 0 || audio.count() == 0) return;
  with_bool(can_pack<T>(width, rows.as<T>(), audio.as<T>()), [&](auto packed) {
    const std::int64_t per_row = width / Access<T, decltype(packed)::value>::kWide;
    for_row_parts(count, per_row, 1,
                  [&](std::int64_t first, std::int64_t n) { f(packed, per_row, first, n); });
  });
}

}  // namespace

void splice_forward(const Stream& stream, const ops::SpliceForward& args) {
  const std::int64_t width = args.out.shape.back();
  with_element(args.out.dtype, [&](auto t) {
    using T = decltype(t);
    for_parts<T>(args.index, args.out, args.audio,
                 [&](auto packed, std::int64_t per_row, std::int64_t first, std::int64_t rows) {
                   launch(stream, "splice", splice_kernel<T, decltype(packed)::value>,
                          {elementwise_blocks(rows * per_row), kElementwiseThreads}, rows * per_row,
                          Divisor(per_row), width,
                          AudioRows{args.first_audio, args.audio.shape.rows()},
                          args.index.as<std::int32_t>() + first, args.audio.as<T>(),
                          args.out.as<T>() + first * width);
                 });
  });
}

void splice_backward(const Stream& stream, const ops::SpliceBackward& args) {
  const std::int64_t width = args.d_out.shape.back();
  with_element(args.d_out.dtype, [&](auto t) {
    using T = decltype(t);
    for_parts<T>(
        args.index, args.d_out, args.d_audio,
        [&](auto packed, std::int64_t per_row, std::int64_t first, std::int64_t rows) {
          launch(stream, "splice_gradient", splice_gradient_kernel<T, decltype(packed)::value>,
                 {elementwise_blocks(rows * per_row), kElementwiseThreads}, rows * per_row,
                 Divisor(per_row), width, AudioRows{args.first_audio, args.d_audio.shape.rows()},
                 args.index.as<std::int32_t>() + first, args.d_out.as<T>() + first * width,
                 args.d_audio.as<T>());
        });
  });
}

}  // namespace choir::cuda
