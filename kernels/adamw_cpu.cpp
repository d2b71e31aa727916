#include <cmath>
#include <type_traits>

#include "kernels/adamw.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector_math.hpp"

namespace choir::cpu {
namespace {

template <class A>
struct Step {
  A scale, beta1, beta2, rest1, rest2, rate, root_correction, epsilon, keep;
};

template <class A, bool kCopy>
void update(std::int64_t first, std::int64_t last, const Step<A>& s, A* w, const A* gradient, A* m,
            A* v, bf16* copy) {
  for_vectors<A>(first, last, [&](std::int64_t i, auto access) {
    const Vec<A> g = access.load(gradient + i) * s.scale;
    const Vec<A> mean = s.beta1 * access.load(m + i) + s.rest1 * g;
    const Vec<A> square = s.beta2 * access.load(v + i) + s.rest2 * g * g;
    const Vec<A> step = s.rate * mean / (sqrt(square) * s.root_correction + s.epsilon);
    const Vec<A> updated = access.load(w + i) * s.keep - step;
    access.store(m + i, mean);
    access.store(v + i, square);
    access.store(w + i, updated);
    if constexpr (kCopy && std::is_same_v<A, float>) access.store(copy + i, updated);
    if constexpr (kCopy && std::is_same_v<A, double>)
      for (std::int64_t j = i; j < i + kLanes<A> && j < last; ++j)
        copy[j] = bf16(static_cast<float>(w[j]));
  });
}

}  // namespace

template <class A>
void adamw(const ops::AdamW& args) {
  const auto t = static_cast<double>(args.step);
  const double correction1 = 1 - std::pow(args.beta1, t), correction2 = 1 - std::pow(args.beta2, t);
  const Step<A> step{static_cast<A>(args.gradient_scale ? *args.gradient_scale : 1.0),
                     static_cast<A>(args.beta1),
                     static_cast<A>(args.beta2),
                     static_cast<A>(1 - args.beta1),
                     static_cast<A>(1 - args.beta2),
                     static_cast<A>(args.learning_rate / correction1),
                     static_cast<A>(1 / std::sqrt(correction2)),
                     static_cast<A>(args.epsilon),
                     static_cast<A>(1 - args.learning_rate * args.decay)};
  auto* w = static_cast<A*>(args.master.data);
  const auto* g = static_cast<const A*>(args.gradient.data);
  auto *m = static_cast<A*>(args.m.data), *v = static_cast<A*>(args.v.data);
  auto* copy = static_cast<bf16*>(args.copy.data);
  parallel_flat(
      args.master.count(),
      [&](std::int64_t first, std::int64_t last) {
        copy ? update<A, true>(first, last, step, w, g, m, v, copy)
             : update<A, false>(first, last, step, w, g, m, v, copy);
      },
      4);
}

template void adamw<double>(const ops::AdamW&);
template void adamw<float>(const ops::AdamW&);

}  // namespace choir::cpu
