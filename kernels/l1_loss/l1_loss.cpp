#include "kernels/l1_loss/l1_loss.hpp"

#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {

void l1_loss(const Stream& stream, const L1Loss& args) {
  const DType dtype = args.predicted.dtype, sums = sum_dtype_of(dtype);
  const std::int64_t rows = args.predicted.shape.rows();
  check_tensor(args.predicted, dtype, args.predicted.count(), "predicted");
  check_tensor(args.target, sums, args.predicted.count(), "target");
  check_tensor(args.losses, sums, rows, "losses");
  CHOIR_CHECK(args.tokens >= 1 && rows % args.tokens == 0, "{} rows of sequences of {}", rows,
              args.tokens);
  CHOIR_CHECK(std::isfinite(args.factor) && std::isfinite(args.scale), "factor {}, scale {}",
              args.factor, args.scale);
  stream.count(3 * static_cast<double>(args.predicted.count()),
               (args.write_gradient ? 2 : 1) * as_bytes(args.predicted) + as_bytes(args.target) +
                   as_bytes(args.losses));
  if (rows == 0) return;
  if (on_cuda(stream)) return cuda::l1_loss(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::l1_loss<decltype(t)>(args); });
}

}  // namespace choir::ops

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

namespace choir::ref {

void l1_loss(const ops::L1Loss& args) {
  const std::int64_t width = args.predicted.shape.back();
  const double step = args.scale * (args.device_scale ? *args.device_scale : 1) * args.factor;
  for (std::int64_t r = 0; r < args.predicted.shape.rows(); ++r) {
    const bool counts = args.lengths == nullptr || r % args.tokens < args.lengths[r / args.tokens];
    double sum = 0;
    for (std::int64_t c = r * width; c < (r + 1) * width; ++c) {
      const double difference =
          counts ? args.predicted.as<double>()[c] - args.target.as<double>()[c] : 0;
      sum += std::fabs(difference);
      if (args.write_gradient)
        args.predicted.as<double>()[c] = difference > 0 ? step : difference < 0 ? -step : 0;
    }
    args.losses.as<double>()[r] = args.factor * sum;
  }
}

}  // namespace choir::ref
