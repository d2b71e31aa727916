#include "kernels/norm/norm.hpp"

#include "kernels/column_sums/column_sums.hpp"
#include "kernels/cuda/types.cuh"
#include "kernels/norm/norm_backward.cuh"
#include "kernels/norm/norm_forward.cuh"

namespace choir::cuda {
namespace {

/// Shared memory that a block can have on every GPU since sm_80; sm_86 and sm_89 have the least.
/// Wider rows use the other kernel on larger GPUs too, so that the bits are the same.
constexpr std::size_t kMostShared = 99 * 1024;
constexpr std::int64_t kNarrowColumns = 256;  ///< columns of a row that a warp covers with one pack
                                              ///< per lane

/// Calls f(RowShare{}) for rows of `width`; returns false if no share holds such rows in registers.
/// Ragged rows are supported only up to the width that a warp holds, because wider ones are rare.
template <class T, class F>
bool with_row_share(std::int64_t width, bool packed, const F& f) {
  using Ragged = RowShare<T, 32, 32, false>;
  const int threads = norm_threads(width);
  if (!packed && width <= Ragged::kMostColumns)
    f(Ragged{});
  else if (!packed || threads == 0)
    return false;
  else if (width <= kNarrowColumns)
    f(RowShare<T, 32, kNarrowColumns / 32, true>{});
  else if (threads == 32)
    f(RowShare<T, 32, 32, true>{});
  else if (threads == 128)
    f(RowShare<T, 128, 32, true>{});
  else if (threads == 256)
    f(RowShare<T, 256, 32, true>{});
  else
    f(RowShare<T, 512, 32, true>{});
  return true;
}

template <class T>
void launch_forward(const Stream& stream, const ops::NormForward& args) {
  const std::int64_t rows = args.residual.shape.rows(), width = args.residual.shape.back();
  const auto data = [](const TensorView& x) { return static_cast<T*>(x.data); };
  const NormForwardArguments<T> a{
      data(args.residual),
      data(args.delta),
      data(args.weight),
      data(args.bias),
      data(args.sum),
      data(args.out),
      args.kind == ops::Norm::layernorm ? args.mean.as<float>() : nullptr,
      args.rstd.as<float>(),
      rows,
      static_cast<int>(width),
      static_cast<float>(args.eps)};
  const bool packed = can_pack<T>(width, a.residual, a.delta, a.weight, a.bias, a.sum, a.out);
  const auto run = [&](auto share) {
    using Row = decltype(share);
    launch(stream, "norm_forward", norm_forward_kernel<Row>,
           {static_cast<unsigned>(blocks_for(rows, Row::kGroups)), Row::kBlock}, a);
  };
  using Lone = LoneRows<T>;
  if (packed && rows <= Lone::kMostRows && width > kNarrowColumns && width <= Lone::kMostColumns)
    return launch_early(stream, "norm_forward", norm_forward_kernel<Lone>,
                        {static_cast<unsigned>(rows), Lone::kBlock}, a);
  if (!with_row_share<T>(width, packed, run))
    launch(stream, "norm_forward_long", norm_forward_long_kernel<T>,
           {static_cast<unsigned>(rows), kLongRowThreads}, a);
}

template <class T>
void launch_backward(const Stream& stream, const ops::NormBackward& args,
                     const NormBackwardPlan& plan) {
  const std::int64_t rows = args.d_out.shape.rows(), width = args.d_out.shape.back();
  const NormBackwardArguments<T> a{
      args.d_out.as<T>(),    args.sum.as<T>(),
      args.weight.as<T>(),   args.kind == ops::Norm::layernorm ? args.mean.as<float>() : nullptr,
      args.rstd.as<float>(), args.d_sum.as<T>(),
      args.accumulate,       static_cast<float*>(args.workspace.data),
      plan.stride,           rows,
      plan.rows_per_block,   static_cast<int>(width)};
  const auto blocks = static_cast<unsigned>(plan.blocks);
  const bool packed = can_pack<T>(width, a.d_out, a.x, a.weight, a.d_sum, a.partials);
  bool done = false;
  with_row_share<T>(width, packed, [&](auto share) {
    using Row = decltype(share);
    if constexpr (kNormBackwardShared<Row> <= kMostShared) {
      launch(stream, "norm_backward", norm_backward_kernel<Row>,
             {blocks, Row::kBlock, kNormBackwardShared<Row>}, a);
      done = true;
    }
  });
  if (!done)
    launch(stream, "norm_backward_long", norm_backward_long_kernel<T>, {blocks, kLongRowThreads},
           a);
}

}  // namespace

void norm_forward(const Stream& stream, const ops::NormForward& args) {
  if (args.residual.count() == 0) return;
  with_element(args.residual.dtype, [&](auto t) { launch_forward<decltype(t)>(stream, args); });
}

void norm_backward(const Stream& stream, const ops::NormBackward& args) {
  const std::int64_t rows = args.d_out.shape.rows(), width = args.d_out.shape.back();
  if (args.d_out.count() == 0) return;
  const NormBackwardPlan plan(rows, width);
  with_element(args.d_out.dtype, [&](auto t) { launch_backward<decltype(t)>(stream, args, plan); });
  add_partials(stream, {static_cast<float*>(args.workspace.data),
                        plan.blocks,
                        2 * plan.stride,
                        plan.stride,
                        width,
                        {args.d_weight.as<float>(),
                         args.d_bias.empty() ? nullptr : args.d_bias.as<float>()}});
}

}  // namespace choir::cuda
