#include "kernels/dropout/dropout.cuh"

#include "kernels/dropout/dropout.hpp"
#include "kernels/cuda/types.cuh"

namespace choir::cuda {

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
