#pragma once
// The mask of dropout inside kernels: what a thread needs to draw the words of its elements.

#include "choir/core/philox.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/dropout/dropout.hpp"

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

/// Host: the arguments for rows [first, first + rows). `groups`: threads per row.
template <class T>
DropoutArguments<T> dropout_arguments(const ops::Dropout& args, std::int64_t first,
                                      std::int64_t rows, std::int64_t groups) {
  const std::int64_t width = args.in.shape.back();
  return {args.in.as<T>() + first * width,
          args.out.as<T>() + first * width,
          static_cast<int>(width),
          static_cast<std::uint32_t>(rows * groups),
          Divisor(groups),
          Divisor(args.tokens),
          args.key,
          dropout_threshold(args.probability),
          static_cast<float>(args.factor / (1 - args.probability)),
          args.first_sample + first / args.tokens,
          args.first_sample_on_device,
          args.sample_ids ? args.sample_ids + first / args.tokens : nullptr,
          static_cast<std::uint32_t>(args.first_position + first % args.tokens),
          static_cast<std::uint32_t>(args.first_column / 4)};
}

template <class T>
__device__ inline std::int64_t first_sample_of(const DropoutArguments<T>& a) {
  return a.first_sample + (a.first_sample_on_device == nullptr ? 0 : *a.first_sample_on_device);
}

/// Multiplies the elements of a row from `column`, a multiple of 4, by their mask and factor.
template <class T, int kCount>
__device__ inline void drop(const DropoutArguments<T>& a, std::int64_t first_sample,
                            std::uint32_t row, int column, float (&x)[kCount]) {
  const std::uint32_t sequence = a.tokens.quotient(row);
  const auto sample = static_cast<std::uint64_t>(a.sample_ids != nullptr ? a.sample_ids[sequence]
                                                                         : first_sample + sequence);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const PhiloxBlock words = philox(
        a.key, {a.first_group + static_cast<std::uint32_t>((column + i) / 4),
                a.first_position + a.tokens.remainder(row), static_cast<std::uint32_t>(sample),
                static_cast<std::uint32_t>(sample >> 32)});
#pragma unroll
    for (std::size_t k = 0; k < 4; ++k)
      x[i + static_cast<int>(k)] =
          words[k] >= a.threshold ? x[i + static_cast<int>(k)] * a.factor : 0.0f;
  }
}

}  // namespace choir::cuda
