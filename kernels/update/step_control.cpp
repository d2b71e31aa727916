#include "kernels/update/step_control.hpp"

#include "choir/ops/step_control.hpp"
#include "kernels/dispatch.hpp"

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
  const std::int64_t terms = args.loss_sums.count();
  check_tensor(args.loss_sums, DType::f64, terms, "loss_sums");
  CHOIR_CHECK(terms >= 1 && terms <= static_cast<std::int64_t>(kMostLossTerms),
              "a loss of {} terms", terms);
  check_optional(args.counts, DType::f64, terms, "counts");
  if (!args.counts.empty()) check_tensor(args.hashes, DType::f64, 1, "hashes");
  CHOIR_CHECK(args.max_norm >= 0 && args.scaling.window >= 0, "norm {} window {}", args.max_norm,
              args.scaling.window);
  if (on_cuda(stream)) return cuda::end_step(stream, args);
  if (!computes(stream)) return;
  choir::end_step(*args.control, *args.square_sum.as<double>(), counted_losses(args), args.max_norm,
                  args.beta1, args.beta2, args.scaling.window);
}

}  // namespace choir::ops
