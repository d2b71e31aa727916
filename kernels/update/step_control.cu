// The step control on the GPU, computed by one thread; see kernels/update/step_control.hpp.

#include "kernels/update/step_control.hpp"

#include "kernels/cuda/launch.cuh"

namespace choir::cuda {
namespace {

__global__ void begin_step_kernel(ops::StepControl* control) {
  wait_for_earlier();
  choir::begin_step(*control);
}

__global__ void end_step_kernel(ops::StepControl* control, const double* square_sum,
                                CountedLosses losses, double max_norm, double beta1, double beta2,
                                double window) {
  wait_for_earlier();
  choir::end_step(*control, *square_sum, losses, max_norm, beta1, beta2, window);
}

}  // namespace

void begin_step(const Stream& stream, ops::StepControl* control) {
  launch(stream, "begin_step", begin_step_kernel, {1, 1}, control);
}

void end_step(const Stream& stream, const ops::EndStep& args) {
  launch(stream, "end_step", end_step_kernel, {1, 1}, args.control, args.square_sum.as<double>(),
         counted_losses(args), args.max_norm, args.beta1, args.beta2, args.scaling.window);
}

}  // namespace choir::cuda
