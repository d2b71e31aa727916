#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "kernels/adamw/adamw.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/random_words.hpp"
#include "kernels/cpu/vector_math.hpp"

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
