#include "kernels/lars/lars.hpp"

namespace choir::ref {

void lars(const ops::Lars& args) {
  const ops::StepControl& c = *args.control;
  if (c.apply == 0) return;
  for (std::int64_t i = 0; i < args.master.count(); ++i) {
    double &w = args.master.as<double>()[i], &v = args.velocity.as<double>()[i];
    const double g = args.gradient.as<double>()[i] * c.gradient_factor;
    const double direction = args.ratio ? args.ratio[0] * g + args.ratio[1] * w : g;
    v = args.momentum * v + c.learning_rate * args.scale * direction;
    w -= v;
    if (args.copy.empty()) continue;
    if (args.copy.dtype == DType::f16)
      args.copy.as<f16>()[i] = f16(static_cast<float>(w));
    else
      args.copy.as<bf16>()[i] = bf16(static_cast<float>(w));
  }
}

}  // namespace choir::ref
