#include <bit>
#include <cmath>

#include "kernels/adamw/adamw.hpp"

namespace choir::ref {
namespace {

bf16 round_at_random(double w, PhiloxKey key, std::uint64_t element, std::uint64_t update) {
  const auto near = static_cast<float>(w);
  if (std::isnan(near)) return bf16(near);
  const std::uint32_t word = philox_at(key, element / 4, update)[element % 4];
  const auto bits = std::bit_cast<std::uint32_t>(near) + (word & 0xffffu);
  return bf16(std::bit_cast<float>(bits & 0xffff0000u));
}

}  // namespace

void adamw(const ops::AdamW& args) {
  const ops::StepControl& c = *args.control;
  if (c.apply == 0) return;
  const bool random = args.master.dtype == DType::bf16;
  for (std::int64_t i = 0; i < args.master.count(); ++i) {
    double &m = args.m.as<double>()[i], &v = args.v.as<double>()[i];
    double w = random ? static_cast<float>(args.master.as<bf16>()[i]) : args.master.as<double>()[i];
    const double g = args.gradient.as<double>()[i] * c.gradient_factor;
    m = args.beta1 * m + (1 - args.beta1) * g;
    v = args.beta2 * v + (1 - args.beta2) * g * g;
    const double m_hat = m / c.correction1, v_hat = v / c.correction2;
    w -=
        c.learning_rate * args.scale * (m_hat / (std::sqrt(v_hat) + args.epsilon) + args.decay * w);
    if (random)
      args.master.as<bf16>()[i] =
          round_at_random(w, args.rounding, static_cast<std::uint64_t>(args.elements.at(i)),
                          static_cast<std::uint64_t>(c.updates));
    else
      args.master.as<double>()[i] = w;
    if (args.copy.dtype == DType::f16 && !args.copy.empty())
      args.copy.as<f16>()[i] = f16(static_cast<float>(w));
    else if (!args.copy.empty())
      args.copy.as<bf16>()[i] = bf16(static_cast<float>(w));
  }
}

}  // namespace choir::ref
