#include "choir/ops/step_control.hpp"

#include "kernels/step_control.hpp"
#include "src/ops/dispatch.hpp"

namespace choir::ops {

void begin_step(const Stream& stream, StepControl* control) {
  CHOIR_CHECK(control != nullptr, "begin_step without a control");
  if (on_cuda(stream)) return cuda::begin_step(stream, control);
  if (!computes(stream)) return;
  choir::begin_step(*control);
}

void end_step(const Stream& stream, const EndStep& args) {
  CHOIR_CHECK(args.control != nullptr, "end_step without a control");
  check_tensor(args.square_sum, DType::f64, 1, "square_sum");
  check_tensor(args.loss_sum, DType::f64, 1, "loss_sum");
  CHOIR_CHECK(args.max_norm >= 0 && args.scaling.window >= 0, "norm {} window {}", args.max_norm,
              args.scaling.window);
  if (on_cuda(stream)) return cuda::end_step(stream, args);
  if (!computes(stream)) return;
  choir::end_step(*args.control, *args.square_sum.as<double>(), *args.loss_sum.as<double>(),
                  args.max_norm, args.beta1, args.beta2, args.scaling.window);
}

}  // namespace choir::ops
