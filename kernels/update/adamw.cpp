// AdamW: checks, dispatch, CPU twin and fp64 reference.

#include "kernels/update/adamw.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/random_words.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {

void adamw(const Stream& stream, const AdamW& args) {
  const DType dtype = args.master.dtype, moment = sum_dtype_of(dtype);
  const std::int64_t n = args.master.count();
  CHOIR_CHECK(dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16,
              "master weights of type {}", name_of(dtype));
  check_tensor(args.master, dtype, n, "master");
  check_tensor(args.gradient, moment, n, "gradient");
  check_tensor(args.m, moment, n, "m");
  check_tensor(args.v, moment, n, "v");
  check_optional(args.copy, args.copy.dtype == DType::f16 ? DType::f16 : DType::bf16, n, "copy");
  CHOIR_CHECK(dtype != DType::bf16 || args.copy.empty(), "bf16 masters take no copy");
  CHOIR_CHECK(args.control != nullptr, "adamw without a step control");
  CHOIR_CHECK(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1, "betas {} {}",
              args.beta1, args.beta2);
  CHOIR_CHECK(args.scale > 0, "learning rate scale {}", args.scale);
  const ElementNumbers& e = args.elements;
  CHOIR_CHECK(e.first >= 0 && e.column >= 0 && e.width >= 0 &&
                  (e.width == 0 || (e.column < e.width && e.stride >= e.width)),
              "elements from {}, column {} of rows of {} every {}", e.first, e.column, e.width,
              e.stride);
  stream.count(14.0 * static_cast<double>(n),
               2 * as_bytes(args.master) + 5 * as_bytes(args.gradient) + as_bytes(args.copy));
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

/// The inputs of the random rounding of bf16 masters.
struct Rounding {
  PhiloxKey key;
  ops::ElementNumbers elements;
  std::uint64_t update;

  /// Draws the words of kWords elements from i on, as many at a time as have consecutive numbers. A
  /// vector of calls begins at a multiple of kWords, so that their numbers have the same upper
  /// half.
  void draw(std::int64_t i, std::uint32_t* words) const {
    alignas(kVectorBytes) std::uint32_t some[kWords];
    for (std::int64_t done = 0; done < kWords;) {
      const std::int64_t element = elements.at(i + done), skip = element % kWords;
      std::int64_t count = std::min(kWords - done, kWords - skip);
      if (elements.width > 0)
        count = std::min(count, elements.width - (elements.column + i + done) % elements.width);
      draw_aligned(element - skip, count == kWords ? words : some);
      if (count < kWords)
        std::memcpy(words + done, some + skip, static_cast<std::size_t>(count) * sizeof *words);
      done += count;
    }
  }
  void draw_aligned(std::int64_t element, std::uint32_t* words) const {
    const auto call = static_cast<std::uint64_t>(element) / 4;
    random_words(key, static_cast<std::uint32_t>(call), static_cast<std::uint32_t>(call >> 32),
                 update, words);
  }
};

/// Rounds every lane to one of its two bf16 neighbours, as f32; NaN is preserved.
inline Floats round_at_random(Floats v, const std::uint32_t* random) {
  Words words;
  std::memcpy(&words, random, sizeof words);
  const Words rounded = ((Words)v + (words & 0xffffu)) & 0xffff0000u;
  return v == v ? (Floats)rounded : v;
}

template <class A, class Master, class Copy>
struct Memory {
  Master* w;
  const A* gradient;
  A *m, *v;
  Copy* copy;  // nullptr: none
};

template <class A, class Master, class Copy, bool kCopy>
void update(std::int64_t first, std::int64_t last, const Step<A>& s,
            const Memory<A, Master, Copy>& at, const Rounding& rounding) {
  constexpr bool kRandom = std::is_same_v<Master, bf16>;
  alignas(kVectorBytes) std::uint32_t words[kRandom ? kWords : 1];
  for_vectors<A>(first, last, [&](std::int64_t i, auto access) {
    const Vec<A> g = access.load(at.gradient + i) * s.scale;
    const Vec<A> mean = s.beta1 * access.load(at.m + i) + s.rest1 * g;
    const Vec<A> square = s.beta2 * access.load(at.v + i) + s.rest2 * g * g;
    const Vec<A> step = s.rate * mean / (sqrt(square) * s.root_correction + s.epsilon);
    const Vec<A> updated = access.load(at.w + i) * s.keep - step;
    access.store(at.m + i, mean);
    access.store(at.v + i, square);
    if constexpr (kRandom) {
      const std::int64_t word = (i - first) % kWords;
      if (word == 0) rounding.draw(i, words);
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

template <class A, class Master, class Copy>
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
  const Memory<A, Master, Copy> at{static_cast<Master*>(args.master.data),
                                   static_cast<const A*>(args.gradient.data),
                                   static_cast<A*>(args.m.data), static_cast<A*>(args.v.data),
                                   static_cast<Copy*>(args.copy.data)};
  const Rounding rounding{args.rounding, args.elements, static_cast<std::uint64_t>(c.updates)};
  parallel_flat(
      args.master.count(),
      [&](std::int64_t first, std::int64_t last) {
        at.copy ? update<A, Master, Copy, true>(first, last, step, at, rounding)
                : update<A, Master, Copy, false>(first, last, step, at, rounding);
      },
      4);
}

template <class A>
void with_copy(const ops::AdamW& args) {
  args.copy.dtype == DType::f16 ? adamw<A, A, f16>(args) : adamw<A, A, bf16>(args);
}

}  // namespace

void adamw(const ops::AdamW& args) {
  if (args.control->apply == 0) return;
  if (args.master.dtype == DType::bf16) return adamw<float, bf16, bf16>(args);
  args.master.dtype == DType::f64 ? with_copy<double>(args) : with_copy<float>(args);
}

}  // namespace choir::cpu

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
