// The element-wise parts of Muon: checks, dispatch, CPU twins and fp64 references.

#include "kernels/update/muon.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/update/random_rounding.hpp"

namespace choir::cpu {
namespace {

/// Calls f(i, access) for vectors of elements on all threads.
template <class A, class F>
void for_all(std::int64_t n, const F& f, int streams) {
  parallel_flat(
      n, [&](std::int64_t first, std::int64_t last) { for_vectors<A>(first, last, f); }, streams);
}

template <class A, class Moment>
void momentum_of(const ops::MuonMomentum& args) {
  constexpr bool kNarrow = std::is_same_v<Moment, bf16>;
  const A mu = static_cast<A>(args.momentum);
  const A of_gradient = static_cast<A>((1 - args.momentum) * args.control->gradient_factor);
  const A* const gradient = args.gradient.as<A>();
  Moment* const m = args.m.as<Moment>();
  A* const direction = args.direction.empty() ? nullptr : args.direction.as<A>();
  const Rounding rounding{args.rounding, args.elements,
                          static_cast<std::uint64_t>(args.control->updates)};
  const auto range = [&](std::int64_t first, std::int64_t last) {
    alignas(kVectorBytes) std::uint32_t words[kNarrow ? kWords : 1];
    for_vectors<A>(first, last, [&](std::int64_t i, auto access) {
      const Vec<A> g = of_gradient * access.load(gradient + i);
      const Vec<A> mean = mu * access.load(m + i) + g;
      if constexpr (kNarrow) {
        const std::int64_t word = (i - first) % kWords;
        if (word == 0) rounding.draw(i, words);
        access.store(m + i, round_at_random(mean, words + word));
      } else {
        access.store(m + i, mean);
      }
      if (direction != nullptr) access.store(direction + i, args.nesterov ? g + mu * mean : mean);
    });
  };
  parallel_flat(args.m.count(), range, 3);
}

template <class A>
void divide(const TensorView& view, double norm) {
  const A divisor = static_cast<A>(norm);
  A* const x = view.as<A>();
  for_all<A>(
      view.count(),
      [&](std::int64_t i, auto access) { access.store(x + i, access.load(x + i) / divisor); }, 1);
}

template <class A>
void weighted(double a, const TensorView& x, double b, const TensorView& y, const TensorView& out) {
  const A of_x = static_cast<A>(a), of_y = static_cast<A>(b);
  for_all<A>(
      x.count(),
      [&](std::int64_t i, auto access) {
        access.store(out.as<A>() + i,
                     of_x * access.load(x.as<A>() + i) + of_y * access.load(y.as<A>() + i));
      },
      3);
}

template <class A, class Copy>
void step_of(const ops::MuonStep& args) {
  const double rate = args.control->learning_rate * args.scale;
  const A keep = static_cast<A>(1 - rate * args.decay), move = static_cast<A>(rate * args.factor);
  A* const w = args.master.as<A>();
  const A* const direction = args.direction.as<A>();
  Copy* const copy = args.copy.empty() ? nullptr : args.copy.as<Copy>();
  for_all<A>(
      args.master.count(),
      [&](std::int64_t i, auto access) {
        const Vec<A> moved = keep * access.load(w + i) - move * access.load(direction + i);
        access.store(w + i, moved);
        if constexpr (std::is_same_v<A, float>)
          if (copy != nullptr) access.store(copy + i, moved);
      },
      2);
  if (copy == nullptr || std::is_same_v<A, float>) return;
  for (std::int64_t i = 0; i < args.master.count(); ++i) copy[i] = Copy(static_cast<float>(w[i]));
}

template <class A>
void with_copy(const ops::MuonStep& args) {
  args.copy.dtype == DType::f16 ? step_of<A, f16>(args) : step_of<A, bf16>(args);
}

}  // namespace
}  // namespace choir::cpu

namespace choir::ops {
namespace {

void check_type(const TensorView& x, const char* name) {
  CHOIR_CHECK(x.dtype == DType::f32 || x.dtype == DType::f64, "{} of type {}", name,
              name_of(x.dtype));
}

bool doubles(const TensorView& x) {
  return x.dtype == DType::f64;
}

}  // namespace

void muon_momentum(const Stream& stream, const MuonMomentum& args) {
  const std::int64_t n = args.gradient.count();
  check_type(args.gradient, "a gradient");
  const bool narrow = args.m.dtype == DType::bf16 && !doubles(args.gradient);
  check_tensor(args.m, narrow ? DType::bf16 : args.gradient.dtype, n, "m");
  check_optional(args.direction, args.gradient.dtype, n, "direction");
  check_numbers(args.elements);
  CHOIR_CHECK(args.control != nullptr, "momentum without a step control");
  CHOIR_CHECK(args.momentum >= 0 && args.momentum < 1, "momentum {}", args.momentum);
  stream.count(5.0 * static_cast<double>(n),
               as_bytes(args.gradient) + 2 * as_bytes(args.m) + as_bytes(args.direction));
  if (on_cuda(stream)) return cuda::muon_momentum(stream, args);
  if (!computes(stream) || args.control->apply == 0) return;
  if (doubles(args.gradient)) return cpu::momentum_of<double, double>(args);
  narrow ? cpu::momentum_of<float, bf16>(args) : cpu::momentum_of<float, float>(args);
}

void divide_by_norm(const Stream& stream, const TensorView& x, const TensorView& square_sum,
                    double epsilon) {
  check_type(x, "a matrix");
  check_tensor(square_sum, DType::f64, 1, "sum of squares");
  CHOIR_CHECK(epsilon > 0, "epsilon {}", epsilon);
  stream.count(static_cast<double>(x.count()), 2 * as_bytes(x));
  if (on_cuda(stream)) return cuda::divide_by_norm(stream, x, square_sum, epsilon);
  if (!computes(stream)) return;
  const double norm = std::max(std::sqrt(*square_sum.as<double>()), epsilon);
  doubles(x) ? cpu::divide<double>(x, norm) : cpu::divide<float>(x, norm);
}

void weighted_sum(const Stream& stream, double a, const TensorView& x, double b,
                  const TensorView& y, const TensorView& out) {
  check_type(x, "a matrix");
  check_tensor(y, x.dtype, x.count(), "second matrix");
  check_tensor(out, x.dtype, x.count(), "sum");
  stream.count(3.0 * static_cast<double>(x.count()), 3 * as_bytes(x));
  if (on_cuda(stream)) return cuda::weighted_sum(stream, a, x, b, y, out);
  if (!computes(stream)) return;
  doubles(x) ? cpu::weighted<double>(a, x, b, y, out) : cpu::weighted<float>(a, x, b, y, out);
}

void muon_step(const Stream& stream, const MuonStep& args) {
  const std::int64_t n = args.master.count();
  check_type(args.master, "master weights");
  check_tensor(args.direction, args.master.dtype, n, "direction");
  check_optional(args.copy, args.copy.dtype == DType::f16 ? DType::f16 : DType::bf16, n, "copy");
  CHOIR_CHECK(args.control != nullptr, "a step without its control");
  CHOIR_CHECK(args.scale > 0 && args.factor > 0 && args.decay >= 0, "scale {}, factor {}, decay {}",
              args.scale, args.factor, args.decay);
  stream.count(3.0 * static_cast<double>(n), 3 * as_bytes(args.master) + as_bytes(args.copy));
  if (on_cuda(stream)) return cuda::muon_step(stream, args);
  if (!computes(stream) || args.control->apply == 0) return;
  doubles(args.master) ? cpu::with_copy<double>(args) : cpu::with_copy<float>(args);
}

}  // namespace choir::ops

namespace choir::ref {

void muon_momentum(const ops::MuonMomentum& args) {
  if (args.control->apply == 0) return;
  for (std::int64_t i = 0; i < args.m.count(); ++i) {
    const double g = args.gradient.as<double>()[i] * args.control->gradient_factor;
    const bool narrow = args.m.dtype == DType::bf16;
    double m = narrow ? static_cast<float>(args.m.as<bf16>()[i]) : args.m.as<double>()[i];
    m = args.momentum * m + (1 - args.momentum) * g;
    if (narrow)
      args.m.as<bf16>()[i] = round_at_random(
          m, random_word(args.rounding, args.elements.at(i), args.control->updates));
    else
      args.m.as<double>()[i] = m;
    if (args.direction.empty()) continue;
    args.direction.as<double>()[i] =
        args.nesterov ? (1 - args.momentum) * g + args.momentum * m : m;
  }
}

void muon_step(const ops::MuonStep& args) {
  if (args.control->apply == 0) return;
  const double rate = args.control->learning_rate * args.scale;
  for (std::int64_t i = 0; i < args.master.count(); ++i) {
    double& w = args.master.as<double>()[i];
    w = (1 - rate * args.decay) * w - rate * args.factor * args.direction.as<double>()[i];
    if (args.copy.empty()) continue;
    if (args.copy.dtype == DType::f16)
      args.copy.as<f16>()[i] = f16(static_cast<float>(w));
    else
      args.copy.as<bf16>()[i] = bf16(static_cast<float>(w));
  }
}

}  // namespace choir::ref
