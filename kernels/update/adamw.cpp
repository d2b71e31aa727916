// AdamW: checks, dispatch, CPU twin and fp64 reference.

#include "kernels/update/adamw.hpp"

#include <cmath>
#include <type_traits>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/update/random_rounding.hpp"

namespace choir::ops {

void adamw(const Stream& stream, const AdamW& args) {
  const DType dtype = args.master.dtype, sum = sum_dtype_of(dtype);
  const DType moment = args.m.dtype == DType::bf16 && sum == DType::f32 ? DType::bf16 : sum;
  const std::int64_t n = args.master.count();
  CHOIR_CHECK(dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16,
              "master weights of type {}", name_of(dtype));
  check_tensor(args.master, dtype, n, "master");
  check_tensor(args.gradient, sum, n, "gradient");
  check_tensor(args.m, moment, n, "m");
  check_tensor(args.v, moment, n, "v");
  check_optional(args.copy, args.copy.dtype == DType::f16 ? DType::f16 : DType::bf16, n, "copy");
  CHOIR_CHECK(dtype != DType::bf16 || args.copy.empty(), "bf16 masters take no copy");
  CHOIR_CHECK(args.control != nullptr, "adamw without a step control");
  CHOIR_CHECK(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1, "betas {} {}",
              args.beta1, args.beta2);
  CHOIR_CHECK(args.scale > 0, "learning rate scale {}", args.scale);
  check_numbers(args.elements);
  stream.count(14.0 * static_cast<double>(n), 2 * as_bytes(args.master) + as_bytes(args.gradient) +
                                                  4 * as_bytes(args.m) + as_bytes(args.copy));
  if (on_cuda(stream)) return cuda::adamw(stream, args);
  if (!computes(stream)) return;
  cpu::adamw(args);
}

}  // namespace choir::ops

namespace choir::cpu {
namespace {

static_assert(kFlatGroup % kWords == 0);

template <class A>
struct Step {
  A scale, beta1, beta2, rest1, rest2, rate, root_correction, epsilon, keep;
};

template <class A, class Master, class Moment, class Copy>
struct Memory {
  Master* w;
  const A* gradient;
  Moment *m, *v;
  Copy* copy;  // nullptr: none
};

struct Roundings {
  Rounding of_masters, of_moments;
};

template <class A, class Master, class Moment, class Copy, bool kCopy>
void update(std::int64_t first, std::int64_t last, const Step<A>& s,
            const Memory<A, Master, Moment, Copy>& at, const Roundings& rounding) {
  constexpr bool kRandom = std::is_same_v<Master, bf16>, kNarrow = std::is_same_v<Moment, bf16>;
  alignas(kVectorBytes) std::uint32_t words[kRandom ? kWords : 1];
  alignas(kVectorBytes) std::uint32_t of_moments[kNarrow ? kWords : 1];
  for_vectors<A>(first, last, [&](std::int64_t i, auto access) {
    const Vec<A> g = access.load(at.gradient + i) * s.scale;
    const Vec<A> mean = s.beta1 * access.load(at.m + i) + s.rest1 * g;
    const Vec<A> square = s.beta2 * access.load(at.v + i) + s.rest2 * g * g;
    const Vec<A> step = s.rate * mean / (sqrt(square) * s.root_correction + s.epsilon);
    const Vec<A> updated = access.load(at.w + i) * s.keep - step;
    [[maybe_unused]] const std::int64_t word = (i - first) % kWords;
    if constexpr (kNarrow) {
      if (word == 0) rounding.of_moments.draw(i, of_moments);
      access.store(at.m + i, round_at_random(mean, of_moments + word));
      access.store(at.v + i, round_by_upper(square, of_moments + word));
    } else {
      access.store(at.m + i, mean);
      access.store(at.v + i, square);
    }
    if constexpr (kRandom) {
      if (word == 0) rounding.of_masters.draw(i, words);
      access.store(at.w + i, round_at_random(updated, words + word));
    } else {
      access.store(at.w + i, updated);
    }
    if constexpr (kCopy && std::is_same_v<A, float>) access.store(at.copy + i, updated);
    if constexpr (kCopy && std::is_same_v<A, double>)
      for (std::int64_t j = i; j < i + kLanes<A> && j < last; ++j)
        at.copy[j] = Copy(static_cast<float>(at.w[j]));
  });
}

template <class A, class Master, class Moment, class Copy>
void adamw(const ops::AdamW& args) {
  const ops::StepControl& c = *args.control;
  const double learning_rate = c.learning_rate * args.scale;
  const Step<A> step{static_cast<A>(c.gradient_factor),
                     static_cast<A>(args.beta1),
                     static_cast<A>(args.beta2),
                     static_cast<A>(1 - args.beta1),
                     static_cast<A>(1 - args.beta2),
                     static_cast<A>(learning_rate / c.correction1),
                     static_cast<A>(1 / std::sqrt(c.correction2)),
                     static_cast<A>(args.epsilon),
                     static_cast<A>(1 - learning_rate * args.decay)};
  const Memory<A, Master, Moment, Copy> at{
      static_cast<Master*>(args.master.data), static_cast<const A*>(args.gradient.data),
      static_cast<Moment*>(args.m.data), static_cast<Moment*>(args.v.data),
      static_cast<Copy*>(args.copy.data)};
  const auto number = static_cast<std::uint64_t>(c.updates);
  const Roundings rounding{{args.rounding, args.elements, number},
                           {args.moment_rounding, args.elements, number}};
  parallel_flat(
      args.master.count(),
      [&](std::int64_t first, std::int64_t last) {
        at.copy ? update<A, Master, Moment, Copy, true>(first, last, step, at, rounding)
                : update<A, Master, Moment, Copy, false>(first, last, step, at, rounding);
      },
      4);
}

template <class A, class Moment>
void with_copy(const ops::AdamW& args) {
  args.copy.dtype == DType::f16 ? adamw<A, A, Moment, f16>(args) : adamw<A, A, Moment, bf16>(args);
}

template <class Moment>
void with_moments(const ops::AdamW& args) {
  args.master.dtype == DType::bf16 ? adamw<float, bf16, Moment, bf16>(args)
                                   : with_copy<float, Moment>(args);
}

}  // namespace

void adamw(const ops::AdamW& args) {
  if (args.control->apply == 0) return;
  if (args.master.dtype == DType::f64) return with_copy<double, double>(args);
  args.m.dtype == DType::bf16 ? with_moments<bf16>(args) : with_moments<float>(args);
}

}  // namespace choir::cpu

namespace choir::ref {

void adamw(const ops::AdamW& args) {
  const ops::StepControl& c = *args.control;
  if (c.apply == 0) return;
  const auto value = [](const TensorView& x, std::int64_t i) {
    return x.dtype == DType::bf16 ? static_cast<float>(x.as<bf16>()[i]) : x.as<double>()[i];
  };
  const auto set = [](const TensorView& x, std::int64_t i, double to, std::uint32_t word) {
    if (x.dtype == DType::bf16)
      x.as<bf16>()[i] = round_at_random(to, word);
    else
      x.as<double>()[i] = to;
  };
  for (std::int64_t i = 0; i < args.master.count(); ++i) {
    const double g = args.gradient.as<double>()[i] * c.gradient_factor;
    const double m = args.beta1 * value(args.m, i) + (1 - args.beta1) * g;
    const double v = args.beta2 * value(args.v, i) + (1 - args.beta2) * g * g;
    const double m_hat = m / c.correction1, v_hat = v / c.correction2;
    double w = value(args.master, i);
    w -=
        c.learning_rate * args.scale * (m_hat / (std::sqrt(v_hat) + args.epsilon) + args.decay * w);
    const std::int64_t element = args.elements.at(i);
    const std::uint32_t word = random_word(args.moment_rounding, element, c.updates);
    set(args.m, i, m, word);
    set(args.v, i, v, word >> 16);
    set(args.master, i, w, random_word(args.rounding, element, c.updates));
    if (args.copy.dtype == DType::f16 && !args.copy.empty())
      args.copy.as<f16>()[i] = f16(static_cast<float>(w));
    else if (!args.copy.empty())
      args.copy.as<bf16>()[i] = bf16(static_cast<float>(w));
  }
}

}  // namespace choir::ref
