#include <cmath>

#include "kernels/adamw.hpp"
#include "kernels/parallel.hpp"
#include "kernels/simd.hpp"

namespace choir::cpu {
namespace {

template <class A>
struct Step {
  A scale, beta1, beta2, rest1, rest2, rate, root_correction, epsilon, keep;
};

template <class A, bool kCopy>
void update(std::int64_t n, const Step<A>& s, A* __restrict w, const A* __restrict gradient,
            A* __restrict m, A* __restrict v, bf16* __restrict copy) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const A g = gradient[i] * s.scale;
    const A mean = s.beta1 * m[i] + s.rest1 * g;
    const A square = s.beta2 * v[i] + s.rest2 * g * g;
    const A updated =
        w[i] * s.keep - s.rate * mean / (std::sqrt(square) * s.root_correction + s.epsilon);
    m[i] = mean;
    v[i] = square;
    w[i] = updated;
    if constexpr (kCopy) copy[i] = bf16(static_cast<float>(updated));
  }
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
        const std::int64_t n = last - first;
        if (copy)
          update<A, true>(n, step, w + first, g + first, m + first, v + first, copy + first);
        else
          update<A, false>(n, step, w + first, g + first, m + first, v + first, nullptr);
      },
      4);
}

template void adamw<double>(const ops::AdamW&);
template void adamw<float>(const ops::AdamW&);

}  // namespace choir::cpu
