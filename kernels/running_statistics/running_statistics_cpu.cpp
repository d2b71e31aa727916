#include <algorithm>

#include "kernels/cpu/parallel.hpp"
#include "kernels/running_statistics/running_statistics.hpp"

namespace choir::cpu {
namespace {

constexpr std::int64_t kGroup = 64;  // channels whose sums stay in registers or L1

}  // namespace

// Processes one line of the records at a time: the inner loop is over consecutive channels.
template <class T>
void update_running_statistics(const ops::RunningUpdate& args) {
  if (args.control != nullptr && args.control->apply == 0) return;
  const std::int64_t width = args.mean.count(), count = args.frames.count();
  const T *frames = args.frames.as<T>(), *records = args.records.as<T>();
  T* const results[] = {args.mean.as<T>(), args.variance.as<T>()};
  const double rest = 1 - args.momentum, momentum = args.momentum;
  const std::int64_t groups = (width + kGroup - 1) / kGroup;
  parallel_ranges(2 * groups, kGroup * count, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t g = first; g < last; ++g) {
      const std::int64_t kind = g / groups, begin = g % groups * kGroup;
      const std::int64_t n = std::min(kGroup, width - begin);
      T* const result = results[kind] + begin;
      double sums[kGroup];
      for (std::int64_t i = 0; i < n; ++i) sums[i] = static_cast<double>(result[i]);
      for (std::int64_t m = 0; m < count; ++m) {
        if (frames[m] < 2) continue;
        const T* own = records + (2 * m + kind) * width + begin;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i)
          sums[i] = rest * sums[i] + momentum * static_cast<double>(own[i]);
      }
      for (std::int64_t i = 0; i < n; ++i) result[i] = static_cast<T>(sums[i]);
    }
  });
}

template void update_running_statistics<float>(const ops::RunningUpdate& args);
template void update_running_statistics<double>(const ops::RunningUpdate& args);

}  // namespace choir::cpu
