#include "kernels/depthwise_conv/depthwise_conv.cuh"

#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/depthwise_conv/depthwise_conv.hpp"

namespace choir::cuda {
namespace {

template <class T>
void convolve(const Stream& stream, const char* name, std::int64_t batch, DepthwiseArguments<T> a) {
  a.chunks = blocks_for(a.tokens, kDepthwiseFrames);
  const std::int64_t lines = blocks_for(a.taps, kDepthwiseTaps) * kDepthwiseTaps;
  with_bool(can_pair<T>(a.width, a.x, a.history, a.y), [&](auto paired) {
    constexpr bool kPaired = decltype(paired)::value;
    constexpr int kTile = kDepthwiseTile<T, kPaired>;
    launch(stream, name, depthwise_conv_kernel<T, kPaired>,
           {dim3(static_cast<unsigned>(batch * a.chunks),
                 static_cast<unsigned>(blocks_for(a.width, kTile))),
            kDepthwiseThreads, sizeof(float) * static_cast<std::size_t>(lines * kTile)},
           a);
  });
}

template <class T>
void weight_gradient(const Stream& stream, const ops::DepthwiseConvBackward& args) {
  const RowSumPlan plan = depthwise_conv_plan(args.x.shape);
  const auto taps = static_cast<int>(args.weight.shape[1]);
  auto* const partials = static_cast<float*>(args.workspace.data);
  const DepthwiseWeightArguments<T> a{args.x.as<T>(),
                                      args.d_y.as<T>(),
                                      args.lengths,
                                      args.x.shape[1],
                                      args.x.shape[2],
                                      args.x.shape.rows(),
                                      plan.rows_per_block,
                                      plan.stride,
                                      taps,
                                      static_cast<int>(args.left),
                                      partials};
  with_bool(can_pair<T>(a.width, a.x, a.d_y), [&](auto paired) {
    constexpr bool kPaired = decltype(paired)::value;
    launch(stream, "depthwise_conv_weight", depthwise_conv_weight_kernel<T, kPaired>,
           {dim3(static_cast<unsigned>(plan.blocks),
                 static_cast<unsigned>(blocks_for(a.width, kDepthwiseTile<T, kPaired>)),
                 static_cast<unsigned>(blocks_for(taps, kDepthwiseTaps))),
            kDepthwiseThreads},
           a);
  });
  add_channel_sums(stream, {partials, plan.blocks, plan.stride, a.width, taps,
                            args.d_weight.empty() ? nullptr : args.d_weight.as<float>(),
                            args.d_bias.empty() ? nullptr : args.d_bias.as<float>()});
}

}  // namespace

void depthwise_conv_forward(const Stream& stream, const ops::DepthwiseConv& args) {
  if (args.x.count() == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    convolve<T>(stream, "depthwise_conv", args.x.shape[0],
                {args.x.as<T>(), args.weight.as<T>(), static_cast<T*>(args.bias.data),
                 static_cast<T*>(args.history.data), args.y.as<T>(), args.lengths, args.x.shape[1],
                 args.x.shape[2], 0, static_cast<int>(args.weight.shape[1]),
                 static_cast<int>(args.left), false});
  });
}

void depthwise_conv_backward(const Stream& stream, const ops::DepthwiseConvBackward& args) {
  if (args.x.count() == 0) return;
  const auto taps = static_cast<int>(args.weight.shape[1]);
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    convolve<T>(
        stream, "depthwise_conv_backward", args.x.shape[0],
        {args.d_y.as<T>(), args.weight.as<T>(), nullptr, nullptr, args.d_x.as<T>(), args.lengths,
         args.x.shape[1], args.x.shape[2], 0, taps, taps - 1 - static_cast<int>(args.left), true});
    if (!args.d_weight.empty() || !args.d_bias.empty()) weight_gradient<T>(stream, args);
  });
}

}  // namespace choir::cuda
