#include "kernels/batch_norm/batch_norm.cuh"

#include "kernels/batch_norm/batch_norm.hpp"
#include "kernels/cuda/types.cuh"

namespace choir::cuda {
namespace {

BatchNormRows rows_of(const RowSumPlan& plan, const TensorView& x, const std::int32_t* lengths,
                      std::int64_t tokens, const TensorView& workspace) {
  CHOIR_CHECK(x.shape.rows() <= kMostItems, "batch norm of {} rows, at most {}", x.shape.rows(),
              kMostItems);
  return {x.shape.rows(),
          plan.rows_per_block,
          x.shape.back(),
          plan.stride,
          Divisor(tokens),
          lengths,
          static_cast<float*>(workspace.data)};
}

/// Grid: blocks along the columns, then along the rows.
template <class T, bool kPacked>
LaunchShape tiles(const RowSumPlan& plan, std::int64_t width) {
  return {dim3(static_cast<unsigned>(blocks_for(width, kBatchNormTile<T, kPacked>)),
               static_cast<unsigned>(plan.blocks)),
          kBatchNormThreads};
}

LaunchShape columns(std::int64_t width, unsigned threads) {
  return {static_cast<unsigned>(blocks_for(width, kWarp)), threads};
}

}  // namespace

void batch_norm_forward(const Stream& stream, const ops::BatchNorm& args) {
  const std::int64_t width = args.x.shape.back();
  if (width == 0) return;
  const RowSumPlan plan = batch_norm_plan(args.x.shape.rows(), width);
  const BatchNormRows a = rows_of(plan, args.x, args.lengths, args.tokens, args.workspace);
  const BatchNormStatistics to{args.mean.as<float>(),
                               args.rstd.as<float>(),
                               args.running_mean.as<float>(),
                               args.running_variance.as<float>(),
                               plan.blocks,
                               args.eps,
                               args.frames.empty() ? nullptr : args.frames.as<float>()};
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    const BatchNormApply<T> p{args.x.as<T>(), nullptr, args.weight.as<T>(), args.bias.as<T>(),
                              to.mean,        to.rstd, args.y.as<T>()};
    const bool packs = can_pack<T>(width, p.x, p.weight, p.bias, p.mean, p.rstd, p.out);
    with_bool(packs, [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      const LaunchShape shape = tiles<T, kPacked>(plan, width);
      if (args.training) {
        if (plan.blocks > 0)
          launch(stream, "batch_norm_moments", batch_norm_moments_kernel<T, kPacked>, shape, a,
                 p.x);
        launch(stream, "batch_norm_join", batch_norm_join_kernel<>, columns(width, kJoinThreads), a,
               to);
      } else {
        launch(stream, "batch_norm_given", batch_norm_given_kernel<>, columns(width, kWarp), width,
               to);
      }
      if (plan.blocks > 0)
        launch(stream, "batch_norm_apply", batch_norm_apply_kernel<T, kPacked>, shape, a, p);
    });
  });
}

void batch_norm_backward(const Stream& stream, const ops::BatchNormBackward& args) {
  if (args.x.count() == 0) return;
  const std::int64_t width = args.x.shape.back();
  const RowSumPlan plan = batch_norm_plan(args.x.shape.rows(), width);
  const BatchNormRows a = rows_of(plan, args.x, args.lengths, args.tokens, args.workspace);
  const auto gradient = [](const TensorView& x) { return x.empty() ? nullptr : x.as<float>(); };
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    const BatchNormApply<T> p{args.x.as<T>(),  args.d_y.as<T>(),      args.weight.as<T>(),
                              nullptr,         args.mean.as<float>(), args.rstd.as<float>(),
                              args.d_x.as<T>()};
    const bool packs = can_pack<T>(width, p.x, p.d_y, p.weight, p.mean, p.rstd, a.partials, p.out);
    with_bool(packs, [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      const LaunchShape shape = tiles<T, kPacked>(plan, width);
      launch(stream, "batch_norm_sums", batch_norm_sums_kernel<T, kPacked>, shape, a, p);
      launch(stream, "batch_norm_totals", batch_norm_totals_kernel<>, columns(width, kJoinThreads),
             a, plan.blocks, gradient(args.d_weight), gradient(args.d_bias));
      launch(stream, "batch_norm_backward", batch_norm_backward_kernel<T, kPacked>, shape, a, p,
             plan.blocks);
    });
  });
}

}  // namespace choir::cuda
