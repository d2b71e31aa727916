#pragma once
// Blocks of rows between two layouts, copied in the widest words that all addresses and strides
// allow, or summed pack by pack. Floor: 1 read per term, 1 write. Neighbouring threads take
// neighbouring words of a block, so blocks of 128 bytes (a head of 64 halves) are whole cache
// lines.
#include "kernels/cuda/access.cuh"

namespace choir::cuda {

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

}  // namespace choir::cuda
