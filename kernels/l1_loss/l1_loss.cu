#include "kernels/l1_loss/l1_loss.cuh"

#include "kernels/cuda/types.cuh"
#include "kernels/l1_loss/l1_loss.hpp"

namespace choir::cuda {

void l1_loss(const Stream& stream, const ops::L1Loss& args) {
  with_element(args.predicted.dtype, [&](auto t) {
    using T = decltype(t);
    const std::int64_t rows = args.predicted.shape.rows();
    const std::int64_t blocks = blocks_for(rows, kL1LossThreads / kWarp);
    CHOIR_CHECK(blocks <= kMostItems, "{} rows of a loss in one call", rows);
    launch(stream, "l1_loss", l1_loss_kernel<T>,
           {dim3(static_cast<unsigned>(blocks)), dim3(kL1LossThreads)},
           L1LossArguments<T>{args.predicted.as<T>(), args.target.as<float>(), args.lengths,
                              args.losses.as<float>(), rows, args.tokens,
                              args.predicted.shape.back(), static_cast<float>(args.factor),
                              args.scale * args.factor, args.device_scale, args.write_gradient});
  });
}

}  // namespace choir::cuda
