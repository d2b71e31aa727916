// Dropout on the GPU, with the same words and therefore the same bits as on the CPU
// (kernels/dropout/dropout.hpp). Floor: 2 element transfers. A call of Philox is about 50
// instructions for four elements, 13 per element with the rest: below the 28 per 16-bit element
// that an H200 has time for at 4.3 TB/s.

#include "kernels/dropout/dropout.cuh"

#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

/// A thread keeps or drops one pack; without packs, up to four elements that share a Philox call.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads) dropout_kernel(DropoutArguments<T> a) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kGroup = kPacked ? Wide::kWide : 4;
  const std::int64_t first_sample = first_sample_of(a);
  for (std::int64_t item = global_thread(); item < a.items; item += global_threads()) {
    const std::uint32_t row = a.groups.quotient(static_cast<std::uint32_t>(item));
    const int column =
        static_cast<int>(a.groups.remainder(static_cast<std::uint32_t>(item))) * kGroup;
    const std::int64_t at = std::int64_t{row} * a.width + column;
    float x[kGroup];
    if constexpr (kPacked) {
      Wide::load(a.in + at, x);
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = column + i < a.width ? to_float(a.in[at + i]) : 0.0f;
    }
    drop(a, first_sample, row, column, x);
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
      for_row_parts(args.in.shape.rows(), groups, args.tokens,
                    [&](std::int64_t first, std::int64_t rows) {
                      launch(stream, "dropout", dropout_kernel<T, kPacked>,
                             {elementwise_blocks(rows * groups), kElementwiseThreads},
                             dropout_arguments<T>(args, first, rows, groups));
                    });
    });
  });
}

}  // namespace choir::cuda
