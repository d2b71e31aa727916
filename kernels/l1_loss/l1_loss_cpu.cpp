#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/l1_loss/l1_loss.hpp"

namespace choir::cpu {
namespace {

/// Returns the sum of |x - target| of a valid row; with `write`, x becomes the gradient.
template <class T>
Sum<T> absolute_errors(T* x, const Sum<T>* target, std::int64_t width, bool write, Sum<T> step) {
  Vec<T> sum{};
  for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
    const Vec<T> difference = access.load(x + c) - access.load(target + c);
    const Vec<T> zeros{};
    sum += difference < 0 ? -difference : difference;  // NaN is preserved
    if (write)
      access.store(x + c, difference > 0 ? zeros + step : difference < 0 ? zeros - step : zeros);
  });
  return sum_of_lanes(sum);
}

}  // namespace

template <class T>
void l1_loss(const ops::L1Loss& args) {
  const std::int64_t width = args.predicted.shape.back();
  const double scale = args.scale * (args.device_scale ? *args.device_scale : 1);
  const auto factor = static_cast<Sum<T>>(args.factor);
  const auto step = static_cast<Sum<T>>(scale * args.factor);
  T* predicted = static_cast<T*>(args.predicted.data);
  const auto* target = static_cast<const Sum<T>*>(args.target.data);
  auto* losses = static_cast<Sum<T>*>(args.losses.data);
  parallel_ranges(args.predicted.shape.rows(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      T* x = predicted + r * width;
      const bool counts =
          args.lengths == nullptr || r % args.tokens < args.lengths[r / args.tokens];
      losses[r] =
          counts ? factor * absolute_errors(x, target + r * width, width, args.write_gradient, step)
                 : 0;
      if (!counts && args.write_gradient)
        for_vectors<T>(0, width,
                       [&](std::int64_t c, auto access) { access.store(x + c, Vec<T>{}); });
    }
  });
}

template void l1_loss<double>(const ops::L1Loss&);
template void l1_loss<float>(const ops::L1Loss&);
template void l1_loss<bf16>(const ops::L1Loss&);
template void l1_loss<f16>(const ops::L1Loss&);

}  // namespace choir::cpu
