#include "kernels/fsq/fsq.cuh"

#include "kernels/cuda/types.cuh"
#include "kernels/fsq/fsq.hpp"

namespace choir::cuda {
namespace {

FsqConstants fsq_constants(const ops::FsqLevels& levels) {
  const FsqNumbers numbers = fsq_numbers(levels);
  FsqConstants constants{};
  constants.count = numbers.count;
  for (int d = 0; d < numbers.count; ++d) {
    const FsqNumber& n = numbers.of[d];
    constants.of[d] = {static_cast<float>(n.scale), static_cast<float>(n.offset),
                       static_cast<float>(n.shift), static_cast<float>(n.half), n.levels};
  }
  return constants;
}

}  // namespace

void fsq_forward(const Stream& stream, const ops::FsqForward& args) {
  const std::int64_t n = args.in.count();
  with_element(args.in.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "fsq", fsq_kernel<T>, {elementwise_blocks(n), kElementwiseThreads}, n,
           fsq_constants(args.levels), args.in.as<T>(), args.codes.as<T>());
  });
}

void fsq_backward(const Stream& stream, const ops::FsqBackward& args) {
  const std::int64_t n = args.in.count();
  with_element(args.in.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "fsq_gradient", fsq_gradient_kernel<T>,
           {elementwise_blocks(n), kElementwiseThreads}, n, fsq_constants(args.levels),
           args.in.as<T>(), args.d_codes.as<T>(), args.d_in.as<T>());
  });
}

void fsq_indices(const Stream& stream, const ops::FsqIndices& args) {
  const std::int64_t n = args.indices.count();
  with_element(args.codes.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "fsq_indices", fsq_indices_kernel<T>,
           {elementwise_blocks(n), kElementwiseThreads}, n, fsq_constants(args.levels),
           args.codes.as<T>(), args.indices.as<std::int32_t>());
  });
}

void fsq_codes(const Stream& stream, const ops::FsqCodes& args) {
  const std::int64_t n = args.indices.count();
  with_element(args.codes.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "fsq_codes", fsq_codes_kernel<T>, {elementwise_blocks(n), kElementwiseThreads},
           n, fsq_constants(args.levels), static_cast<std::int32_t>(args.levels.codes()),
           args.indices.as<std::int32_t>(), args.codes.as<T>());
  });
}

}  // namespace choir::cuda
