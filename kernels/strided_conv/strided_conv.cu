#include "kernels/strided_conv/strided_conv.cuh"

#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/strided_conv/strided_conv.hpp"

namespace choir::cuda {
namespace {

template <class T>
StridedArguments<T> sizes_of(const Shape& x, const Shape& y, bool causal) {
  CHOIR_CHECK(y[0] * y[1] <= kMostItems, "strided convolution to {} frames, at most {}",
              y[0] * y[1], kMostItems);
  CHOIR_CHECK(x[2] <= kMostItems / y[3], "strided convolution of {} frequencies to {} channels",
              x[2], y[3]);
  StridedArguments<T> a{};
  a.out_frames = Divisor(y[1]);
  a.frames = x[1], a.frequencies = static_cast<int>(x[2]);
  a.out_rows = y[0] * y[1], a.out_frequencies = static_cast<int>(y[2]);
  a.channels = static_cast<int>(y[3]);
  a.pad = causal ? 2 : 1, a.narrow = x[3] == 1;
  return a;
}

/// Grid: tiles of channels by blocks of `rows` output frames.
template <class T, bool kPacked>
dim3 tiles(const StridedArguments<T>& a, std::int64_t rows) {
  return dim3(static_cast<unsigned>(blocks_for(a.out_rows, rows)),
              static_cast<unsigned>(blocks_for(a.channels, kStridedTile<T, kPacked>)));
}

template <class T>
void input_gradient(const Stream& stream, const StridedArguments<T>& a, std::int64_t inputs) {
  if (a.narrow) {
    CHOIR_CHECK(inputs <= kMostItems, "strided convolution of {} values, at most {}", inputs,
                kMostItems);
    return launch(stream, "strided_conv_narrow_input", strided_conv_narrow_input_kernel<T>,
                  {elementwise_blocks(inputs * kWarp), kStridedThreads},
                  static_cast<std::uint32_t>(inputs), Divisor(a.frequencies), Divisor(a.frames), a);
  }
  with_bool(can_pack<T>(a.channels, a.d_y, a.y, a.d_x), [&](auto packed) {
    constexpr bool kPacked = decltype(packed)::value;
    launch(stream, "strided_conv_input", strided_conv_input_kernel<T, kPacked>,
           {tiles<T, kPacked>(a, kStridedRows), kStridedThreads}, a);
  });
}

template <class T>
void weight_gradient(const Stream& stream, const StridedArguments<T>& a) {
  const bool pairs = can_pair<T>(a.channels, a.d_y, a.y) && (a.narrow || can_pair<T>(0, a.x));
  with_bool(pairs, [&](auto paired) {
    with_bool(a.narrow, [&](auto narrow) {
      constexpr bool kPaired = decltype(paired)::value, kNarrow = decltype(narrow)::value;
      constexpr int kTile = kWarp * Pairs<T, kPaired>::kWide;
      launch(stream, "strided_conv_weight", strided_conv_weight_kernel<T, kPaired, kNarrow>,
             {dim3(static_cast<unsigned>(blocks_for(a.out_rows, a.rows_per_block)),
                   static_cast<unsigned>(blocks_for(a.channels, kTile))),
              kStridedThreads},
             a);
    });
  });
}

}  // namespace

void strided_conv_forward(const Stream& stream, const ops::StridedConv& args) {
  if (args.y.count() == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    auto a = sizes_of<T>(args.x.shape, args.y.shape, args.causal);
    a.x = args.x.as<T>(), a.weight = args.weight.as<T>(), a.bias = args.bias.as<T>();
    a.y = args.y.as<T>(), a.relu = args.relu;
    a.in_lengths = args.in_lengths, a.out_lengths = args.out_lengths;
    const bool can = can_pack<T>(a.channels, a.y, a.bias) && (a.narrow || can_pack<T>(0, a.x));
    with_bool(can, [&](auto packed) {
      with_bool(a.narrow, [&](auto narrow) {
        constexpr bool kPacked = decltype(packed)::value, kNarrow = decltype(narrow)::value;
        launch(stream, "strided_conv", strided_conv_kernel<T, kPacked, kNarrow>,
               {tiles<T, kPacked>(a, kStridedRows), kStridedThreads}, a);
      });
    });
  });
}

void strided_conv_backward(const Stream& stream, const ops::StridedConvBackward& args) {
  if (args.d_y.count() == 0) return;
  const RowSumPlan plan = strided_conv_plan(args.d_y.shape);
  const auto gradient = [](const TensorView& x) { return x.empty() ? nullptr : x.as<float>(); };
  with_element(args.d_y.dtype, [&](auto t) {
    using T = decltype(t);
    auto a = sizes_of<T>(args.x.shape, args.d_y.shape, args.causal);
    a.x = args.x.as<T>(), a.weight = args.weight.as<T>(), a.d_y = args.d_y.as<T>();
    a.relu = args.relu, a.y = args.relu ? args.y.as<T>() : nullptr;
    a.in_lengths = args.in_lengths, a.out_lengths = args.out_lengths;
    a.rows_per_block = plan.rows_per_block, a.stride = plan.stride;
    a.partials = static_cast<float*>(args.workspace.data);
    if (!args.d_x.empty()) {
      a.d_x = args.d_x.as<T>();
      input_gradient(stream, a, args.x.count());
    }
    if (args.d_weight.empty() && args.d_bias.empty()) return;
    weight_gradient(stream, a);
    add_channel_sums(stream, {a.partials, plan.blocks, plan.stride, a.channels, 9,
                              gradient(args.d_weight), gradient(args.d_bias)});
  });
}

}  // namespace choir::cuda
