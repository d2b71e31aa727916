#include "kernels/bias_gradient/bias_gradient.cuh"

#include "kernels/bias_gradient/bias_gradient.hpp"
#include "kernels/column_sums/column_sums.hpp"
#include "kernels/cuda/types.cuh"

namespace choir::cuda {

void bias_gradient(const Stream& stream, const TensorView& d_y, const TensorView& d_bias,
                   const TensorView& workspace) {
  if (d_y.count() == 0) return;
  const std::int64_t rows = d_y.shape.rows(), width = d_y.shape.back();
  with_element(d_y.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(width, d_y.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      if constexpr (kPacked) {
        if (rows <= kFewRows)
          return launch(
              stream, "sector_sums", sector_sums_kernel<T>,
              {static_cast<unsigned>(blocks_for(width, kSectorTile<T>)), sector_threads(rows)},
              rows, width, d_y.as<T>(), d_bias.as<float>());
      }
      const BiasGradientPlan plan(rows, width);
      auto* partials = static_cast<float*>(workspace.data);
      launch(stream, "bias_gradient", bias_gradient_kernel<T, kPacked>,
             {dim3(static_cast<unsigned>(blocks_for(width, kColumnTile<T, kPacked>)),
                   static_cast<unsigned>(plan.blocks)),
              kColumnThreads},
             rows, plan.rows_per_block, width, d_y.as<T>(), plan.stride, partials);
      add_partials(stream,
                   {partials, plan.blocks, plan.stride, 0, width, {d_bias.as<float>(), nullptr}});
    });
  });
}

}  // namespace choir::cuda
