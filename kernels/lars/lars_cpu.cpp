#include <type_traits>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/lars/lars.hpp"

namespace choir::cpu {
namespace {

template <class A>
struct LarsStep {
  A momentum, of_gradient, of_weight;
};

template <class A, class Copy>
void take_lars_step(const ops::Lars& args, std::int64_t first, std::int64_t last,
                    const LarsStep<A>& s) {
  A* const w = args.master.as<A>();
  A* const v = args.velocity.as<A>();
  const A* const gradient = args.gradient.as<A>();
  Copy* const copy = args.copy.empty() ? nullptr : args.copy.as<Copy>();
  for_vectors<A>(first, last, [&](std::int64_t i, auto access) {
    const Vec<A> weight = access.load(w + i);
    const Vec<A> velocity = s.momentum * access.load(v + i) +
                            (s.of_gradient * access.load(gradient + i) + s.of_weight * weight);
    access.store(v + i, velocity);
    access.store(w + i, weight - velocity);
    if constexpr (std::is_same_v<A, float>)
      if (copy != nullptr) access.store(copy + i, weight - velocity);
  });
  if (copy == nullptr || std::is_same_v<A, float>) return;
  for (std::int64_t i = first; i < last; ++i) copy[i] = Copy(static_cast<float>(w[i]));
}

template <class A, class Copy>
void lars_of(const ops::Lars& args) {
  const ops::StepControl& c = *args.control;
  const double rate = c.learning_rate * args.scale;
  const double ratio = args.ratio ? args.ratio[0] : 1, decay = args.ratio ? args.ratio[1] : 0;
  const LarsStep<A> step{static_cast<A>(args.momentum),
                         static_cast<A>(rate * ratio * c.gradient_factor),
                         static_cast<A>(rate * decay)};
  parallel_flat(
      args.master.count(),
      [&](std::int64_t first, std::int64_t last) {
        take_lars_step<A, Copy>(args, first, last, step);
      },
      3);
}

template <class A>
void with_lars_copy(const ops::Lars& args) {
  args.copy.dtype == DType::f16 ? lars_of<A, f16>(args) : lars_of<A, bf16>(args);
}

}  // namespace

void trust_ratios(const ops::TrustRatios& args) {
  const auto* begins = args.begins.as<std::int64_t>();
  const auto sum = [](const TensorView& sums, std::int64_t first, std::int64_t end) {
    double all = 0;
    for (std::int64_t i = first; i < end; ++i) all += sums.as<double>()[i];
    return all;
  };
  for (std::int64_t t = 0; t + 1 < args.begins.count(); ++t)
    set_trust_ratio(sum(args.weight_sums, begins[t], begins[t + 1]),
                    sum(args.gradient_sums, begins[t], begins[t + 1]),
                    args.control->gradient_factor, args.coefficient, args.decay, args.epsilon,
                    args.ratios.as<double>() + 2 * t);
}

void lars(const ops::Lars& args) {
  if (args.control->apply == 0) return;
  args.master.dtype == DType::f64 ? with_lars_copy<double>(args) : with_lars_copy<float>(args);
}

}  // namespace choir::cpu
