#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/fsq/fsq.hpp"

namespace choir::cpu {
namespace {

constexpr std::int64_t kFsqCost = 16;  // work of a tanh in units of a copy

/// Calls f(element, its levels) for all elements of whole vectors, with several threads.
template <class F>
void for_fsq(const ops::FsqLevels& levels, std::int64_t count, const F& f) {
  const FsqNumbers numbers = fsq_numbers(levels);
  parallel_ranges(count / numbers.count, numbers.count * kFsqCost,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t v = first; v < last; ++v)
                      for (int d = 0; d < numbers.count; ++d)
                        f(v * numbers.count + d, numbers.of[d]);
                  });
}

template <class T>
double fsq_value(const TensorView& x, std::int64_t i) {
  return static_cast<double>(static_cast<Sum<T>>(static_cast<const T*>(x.data)[i]));
}
template <class T>
void set_fsq_value(const TensorView& x, std::int64_t i, double value) {
  static_cast<T*>(x.data)[i] = static_cast<T>(static_cast<Sum<T>>(value));
}

}  // namespace

template <class T>
void fsq_forward(const ops::FsqForward& args) {
  for_fsq(args.levels, args.in.count(), [&](std::int64_t i, const FsqNumber& n) {
    const double y = n.scale * std::tanh(fsq_value<T>(args.in, i) + n.shift) - n.offset;
    set_fsq_value<T>(args.codes, i, std::rint(y) / n.half);
  });
}

template <class T>
void fsq_backward(const ops::FsqBackward& args) {
  for_fsq(args.levels, args.in.count(), [&](std::int64_t i, const FsqNumber& n) {
    const double t = std::tanh(fsq_value<T>(args.in, i) + n.shift);
    set_fsq_value<T>(args.d_in, i,
                     fsq_value<T>(args.d_codes, i) * (n.scale * (1 - t * t) / n.half));
  });
}

template <class T>
void fsq_indices(const ops::FsqIndices& args) {
  const FsqNumbers numbers = fsq_numbers(args.levels);
  for (std::int64_t v = 0; v < args.indices.count(); ++v) {
    std::int32_t index = 0, base = 1;
    for (int d = 0; d < numbers.count; ++d) {
      const FsqNumber& n = numbers.of[d];
      const double q = std::rint(fsq_value<T>(args.codes, v * numbers.count + d) * n.half);
      // The order of the arguments maps NaN to the lowest level.
      const double level = std::fmin(std::fmax(q + n.half, 0.0), n.levels - 1.0);
      index += static_cast<std::int32_t>(level) * base;
      base *= n.levels;
    }
    static_cast<std::int32_t*>(args.indices.data)[v] = index;
  }
}

template <class T>
void fsq_codes(const ops::FsqCodes& args) {
  const FsqNumbers numbers = fsq_numbers(args.levels);
  for (std::int64_t v = 0; v < args.indices.count(); ++v) {
    std::int32_t left = static_cast<const std::int32_t*>(args.indices.data)[v];
    for (int d = 0; d < numbers.count; ++d) {
      const FsqNumber& n = numbers.of[d];
      set_fsq_value<T>(args.codes, v * numbers.count + d,
                       static_cast<double>(left % n.levels - n.half) / n.half);
      left /= n.levels;
    }
  }
}

#define CHOIR_INSTANTIATE(T)                              \
  template void fsq_forward<T>(const ops::FsqForward&);   \
  template void fsq_backward<T>(const ops::FsqBackward&); \
  template void fsq_indices<T>(const ops::FsqIndices&);   \
  template void fsq_codes<T>(const ops::FsqCodes&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu
