#include <cmath>

#include "kernels/adamw.hpp"

namespace choir::ref {

void adamw(const ops::AdamW& args) {
  const auto t = static_cast<double>(args.step);
  for (std::int64_t i = 0; i < args.master.count(); ++i) {
    double &w = args.master.as<double>()[i], &m = args.m.as<double>()[i],
           &v = args.v.as<double>()[i];
    const double g =
        args.gradient.as<double>()[i] * (args.gradient_scale ? *args.gradient_scale : 1.0);
    m = args.beta1 * m + (1 - args.beta1) * g;
    v = args.beta2 * v + (1 - args.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(args.beta1, t)),
                 v_hat = v / (1 - std::pow(args.beta2, t));
    w -= args.learning_rate * (m_hat / (std::sqrt(v_hat) + args.epsilon) + args.decay * w);
    if (!args.copy.empty()) args.copy.as<bf16>()[i] = bf16(static_cast<float>(w));
  }
}

}  // namespace choir::ref
