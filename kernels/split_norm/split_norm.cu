#include "kernels/split_norm/split_norm.cuh"

#include "kernels/column_sums/column_sums.hpp"
#include "kernels/cuda/types.cuh"
#include "kernels/split_norm/split_norm.hpp"

namespace choir::cuda {
namespace {

/// One warp per row.
LaunchShape warps(std::int64_t rows) {
  return {dim3(static_cast<unsigned>(blocks_for(rows, kSplitRows))), kElementwiseThreads};
}

template <class T>
SplitNormBackwardArguments<T> backward_arguments(const ops::SplitNormBackward& args,
                                                 const NormBackwardPlan& plan) {
  return {args.d_out.as<T>(),
          args.x.as<T>(),
          args.weight.as<T>(),
          args.mean.as<float>(),
          args.rstd.as<float>(),
          args.sums.as<float>(),
          static_cast<T*>(args.d_x.data),
          static_cast<float*>(args.workspace.data),
          args.x.shape.rows(),
          plan.rows_per_block,
          plan.stride,
          static_cast<int>(args.x.shape.back()),
          1.0f / static_cast<float>(args.width)};
}

}  // namespace

void split_norm_moments(const Stream& stream, const TensorView& x, const TensorView& moments) {
  if (x.count() == 0) return;
  with_element(x.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(x.shape.back(), x.as<T>()), [&](auto packed) {
      launch(stream, "split_norm_moments", split_norm_moments_kernel<T, decltype(packed)::value>,
             warps(x.shape.rows()), x.shape.rows(), static_cast<int>(x.shape.back()), x.as<T>(),
             moments.as<float>());
    });
  });
}

void split_norm_forward(const Stream& stream, const ops::SplitNormForward& args) {
  if (args.x.count() == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    const std::int64_t rows = args.x.shape.rows();
    const SplitNormForwardArguments<T> a{args.x.as<T>(),
                                         args.moments.as<float>(),
                                         args.weight.as<T>(),
                                         args.bias.as<T>(),
                                         args.out.as<T>(),
                                         args.mean.as<float>(),
                                         args.rstd.as<float>(),
                                         rows,
                                         static_cast<int>(args.moments.shape[0]),
                                         static_cast<int>(args.x.shape.back()),
                                         static_cast<float>(args.eps)};
    with_bool(can_pack<T>(a.width, a.x, a.weight, a.bias, a.out), [&](auto packed) {
      launch(stream, "split_norm_forward", split_norm_forward_kernel<T, decltype(packed)::value>,
             warps(rows), a);
    });
  });
}

void split_norm_sums(const Stream& stream, const ops::SplitNormBackward& args) {
  const NormBackwardPlan plan(args.x.shape.rows(), args.x.shape.back());
  if (args.x.count() == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    const auto a = backward_arguments<T>(args, plan);
    with_bool(can_pack<T>(a.width, a.d_out, a.x, a.weight), [&](auto packed) {
      launch(stream, "split_norm_sums", split_norm_sums_kernel<T, decltype(packed)::value>,
             warps(a.rows), a);
    });
  });
}

void split_norm_backward(const Stream& stream, const ops::SplitNormBackward& args) {
  const NormBackwardPlan plan(args.x.shape.rows(), args.x.shape.back());
  if (args.x.count() == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    const auto a = backward_arguments<T>(args, plan);
    with_bool(can_pair<T>(a.width, a.d_out, a.x, a.weight, a.d_x), [&](auto paired) {
      launch(stream, "split_norm_backward", split_norm_backward_kernel<T, decltype(paired)::value>,
             {dim3(static_cast<unsigned>(plan.blocks)), kElementwiseThreads}, a);
    });
  });
  add_partials(stream, {static_cast<float*>(args.workspace.data),
                        plan.blocks,
                        2 * plan.stride,
                        plan.stride,
                        args.x.shape.back(),
                        {args.d_weight.as<float>(), args.d_bias.as<float>()}});
}

}  // namespace choir::cuda
