// LARS and its trust ratios: checks, dispatch, CPU twin and fp64 reference.

#include "kernels/update/lars.hpp"

#include <type_traits>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {

void trust_ratios(const Stream& stream, const TrustRatios& args) {
  const std::int64_t chunks = args.weight_sums.count(), n = args.begins.count() - 1;
  check_tensor(args.weight_sums, DType::f64, chunks, "weight sums");
  check_tensor(args.gradient_sums, DType::f64, chunks, "gradient sums");
  check_tensor(args.begins, DType::i64, n + 1, "begins");
  check_tensor(args.ratios, DType::f64, 2 * n, "ratios");
  CHOIR_CHECK(args.control != nullptr, "trust ratios without a step control");
  CHOIR_CHECK(args.coefficient > 0 && args.decay >= 0 && args.epsilon > 0,
              "coefficient {}, decay {}, epsilon {}", args.coefficient, args.decay, args.epsilon);
  stream.count(2.0 * static_cast<double>(chunks), 2 * as_bytes(args.weight_sums));
  if (on_cuda(stream)) return cuda::trust_ratios(stream, args);
  if (!computes(stream)) return;
  cpu::trust_ratios(args);
}

void lars(const Stream& stream, const Lars& args) {
  const DType dtype = args.master.dtype;
  const std::int64_t n = args.master.count();
  CHOIR_CHECK(dtype == DType::f32 || dtype == DType::f64, "master weights of type {}",
              name_of(dtype));
  check_tensor(args.master, dtype, n, "master");
  check_tensor(args.gradient, dtype, n, "gradient");
  check_tensor(args.velocity, dtype, n, "velocity");
  check_optional(args.copy, args.copy.dtype == DType::f16 ? DType::f16 : DType::bf16, n, "copy");
  CHOIR_CHECK(args.control != nullptr, "lars without a step control");
  CHOIR_CHECK(args.momentum >= 0 && args.momentum < 1, "momentum {}", args.momentum);
  CHOIR_CHECK(args.scale > 0, "learning rate scale {}", args.scale);
  stream.count(6.0 * static_cast<double>(n), 5 * as_bytes(args.master) + as_bytes(args.copy));
  if (on_cuda(stream)) return cuda::lars(stream, args);
  if (!computes(stream)) return;
  cpu::lars(args);
}

}  // namespace choir::ops

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
