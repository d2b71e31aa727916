// Dropout on the GPU, with the same words and therefore the same bits as on the CPU
// (kernels/dropout/dropout.hpp). Floor: 2 element transfers. A call of Philox is about 50
// instructions for four elements, 13 per element with the rest: below the 28 per 16-bit element
// that an H200 has time for at 4.3 TB/s.

#include "kernels/dropout/dropout.hpp"

#include "choir/core/philox.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

template <class T>
struct DropoutArguments {
  const T* in;
  T* out;
  int width;
  std::uint32_t items;  ///< rows * groups
  Divisor groups;       ///< threads per row
  Divisor tokens;
  PhiloxKey key;
  std::uint32_t threshold;
  float factor;  ///< factor / (1 - p)
  std::int64_t first_sample;
  const std::int64_t* first_sample_on_device;  ///< may be nullptr
  const std::int64_t* sample_ids;              ///< may be nullptr: consecutive
  std::uint32_t first_position;
  std::uint32_t first_group;  ///< groups of four features before those of the rows
};

/// A thread keeps or drops one pack; without packs, up to four elements that share a Philox call.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads) dropout_kernel(DropoutArguments<T> a) {
  using Wide = Access<T, kPacked>;
  constexpr int kGroup = kPacked ? Wide::kWide : 4;
  const std::int64_t first_sample =
      a.first_sample + (a.first_sample_on_device == nullptr ? 0 : *a.first_sample_on_device);
  for (std::int64_t item = global_thread(); item < a.items; item += global_threads()) {
    const std::uint32_t row = a.groups.quotient(static_cast<std::uint32_t>(item));
    const int column =
        static_cast<int>(a.groups.remainder(static_cast<std::uint32_t>(item))) * kGroup;
    const std::int64_t at = std::int64_t{row} * a.width + column;
    const std::uint32_t sequence = a.tokens.quotient(row);
    const auto sample = static_cast<std::uint64_t>(
        a.sample_ids != nullptr ? a.sample_ids[sequence] : first_sample + sequence);
    float x[kGroup];
    if constexpr (kPacked) {
      Wide::load(a.in + at, x);
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = column + i < a.width ? to_float(a.in[at + i]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kGroup; i += 4) {
      const PhiloxBlock words = philox(
          a.key, {a.first_group + static_cast<std::uint32_t>((column + i) / 4),
                  a.first_position + a.tokens.remainder(row), static_cast<std::uint32_t>(sample),
                  static_cast<std::uint32_t>(sample >> 32)});
#pragma unroll
      for (std::size_t k = 0; k < 4; ++k)
        x[i + static_cast<int>(k)] =
            words[k] >= a.threshold ? x[i + static_cast<int>(k)] * a.factor : 0.0f;
    }
    if constexpr (kPacked) {
      Wide::store(a.out + at, x);
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (column + i < a.width) a.out[at + i] = from_float<T>(x[i]);
    }
  }
}

void dropout(const Stream& stream, const ops::Dropout& args) {
  if (args.in.count() == 0) return;
  const std::int64_t width = args.in.shape.back();
  with_element(args.in.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(width, args.in.as<T>(), args.out.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      const std::int64_t groups = blocks_for(width, kPacked ? kPack<T> : 4);
      for_row_parts(
          args.in.shape.rows(), groups, args.tokens, [&](std::int64_t first, std::int64_t rows) {
            launch(stream, "dropout", dropout_kernel<T, kPacked>,
                   {elementwise_blocks(rows * groups), kElementwiseThreads},
                   DropoutArguments<T>{
                       args.in.as<T>() + first * width, args.out.as<T>() + first * width,
                       static_cast<int>(width), static_cast<std::uint32_t>(rows * groups),
                       Divisor(groups), Divisor(args.tokens), args.key,
                       dropout_threshold(args.probability),
                       static_cast<float>(args.factor / (1 - args.probability)),
                       args.first_sample + first / args.tokens, args.first_sample_on_device,
                       args.sample_ids ? args.sample_ids + first / args.tokens : nullptr,
                       static_cast<std::uint32_t>(args.first_position + first % args.tokens),
                       static_cast<std::uint32_t>(args.first_column / 4)});
          });
    });
  });
}

}  // namespace choir::cuda
