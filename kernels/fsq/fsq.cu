// Finite scalar quantisation: a thread has one element, or one vector of a codebook; formulas are
// in kernels/fsq/fsq.hpp. The constants of a number are read from the kernel arguments by index,
// through the constant cache: neighbouring threads need different ones, eight at most. The cost of
// a step is elsewhere by orders of magnitude.

#include "kernels/fsq/fsq.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

struct FsqConstant {
  float scale, offset, shift, half;
  std::int32_t levels;
};
struct FsqConstants {
  FsqConstant of[ops::FsqLevels::kMost];
  int count;
};

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    fsq_kernel(std::int64_t n, FsqConstants numbers, const T* in, T* codes) {
  follow_earlier();
  for (std::int64_t i = global_thread(); i < n; i += global_threads()) {
    const FsqConstant c = numbers.of[i % numbers.count];
    const float y = c.scale * tanhf(to_float(in[i]) + c.shift) - c.offset;
    codes[i] = from_float<T>(rintf(y) / c.half);
  }
}

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    fsq_gradient_kernel(std::int64_t n, FsqConstants numbers, const T* in, const T* d_codes,
                        T* d_in) {
  follow_earlier();
  for (std::int64_t i = global_thread(); i < n; i += global_threads()) {
    const FsqConstant c = numbers.of[i % numbers.count];
    const float t = tanhf(to_float(in[i]) + c.shift);
    d_in[i] = from_float<T>(to_float(d_codes[i]) * (c.scale * (1.0f - t) * (1.0f + t) / c.half));
  }
}

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    fsq_indices_kernel(std::int64_t vectors, FsqConstants numbers, const T* codes,
                       std::int32_t* indices) {
  follow_earlier();
  for (std::int64_t v = global_thread(); v < vectors; v += global_threads()) {
    std::int32_t index = 0, base = 1;
    for (int d = 0; d < numbers.count; ++d) {
      const FsqConstant c = numbers.of[d];
      const float q = rintf(to_float(codes[v * numbers.count + d]) * c.half);
      // The order of the arguments maps NaN to the lowest level.
      const float level = fminf(fmaxf(q + c.half, 0.0f), static_cast<float>(c.levels - 1));
      index += static_cast<std::int32_t>(level) * base;
      base *= c.levels;
    }
    indices[v] = index;
  }
}

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    fsq_codes_kernel(std::int64_t vectors, FsqConstants numbers, std::int32_t all,
                     const std::int32_t* indices, T* codes) {
  follow_earlier();
  for (std::int64_t v = global_thread(); v < vectors; v += global_threads()) {
    std::int32_t left = indices[v];
    const bool known = left >= 0 && left < all;
    for (int d = 0; d < numbers.count; ++d) {
      const FsqConstant c = numbers.of[d];
      const float q = static_cast<float>(left % c.levels) - c.half;
      codes[v * numbers.count + d] = from_float<T>(known ? q / c.half : NAN);
      left /= c.levels;
    }
  }
}

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
