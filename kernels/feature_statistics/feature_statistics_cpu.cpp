#include "kernels/feature_statistics/feature_statistics.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"

namespace choir::cpu {
namespace {

constexpr std::int64_t kBlock = 32;  // frames summed in the type of the features

/// Sums f(x) over n frames of a vector of bins.
template <class T, class Access, class F>
void column_sums(const T* x, std::int64_t n, std::int64_t bins, Access access, double* sums,
                 const F& f) {
  std::fill(sums, sums + kLanes<T>, 0.0);
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t last = std::min(first + kBlock, n);
    Vec<T> sum{};
    for (std::int64_t t = first; t < last; ++t) sum += f(access.load(x + t * bins));
    for (int i = 0; i < kLanes<T>; ++i) sums[i] += static_cast<double>(sum[i]);
  }
}

/// Normalises a vector of bins of one utterance with n valid frames.
template <class T, class Access>
void normalise(T* x, std::int64_t n, std::int64_t bins, Access access) {
  double sums[kLanes<T>];
  Vec<T> mean{}, scale{};
  const auto count = static_cast<double>(n);
  column_sums(x, n, bins, access, sums, [](Vec<T> v) { return v; });
  for (int i = 0; i < kLanes<T>; ++i) mean[i] = static_cast<T>(sums[i] / count);
  column_sums(x, n, bins, access, sums, [&](Vec<T> v) { return (v - mean) * (v - mean); });
  for (int i = 0; i < kLanes<T>; ++i) {
    const double deviation = n < 2 ? 0 : std::sqrt(sums[i] / (count - 1));
    scale[i] = static_cast<T>(1 / (deviation + kStandardDeviationGuard));
  }
  for (std::int64_t t = 0; t < n; ++t)
    access.store(x + t * bins, (access.load(x + t * bins) - mean) * scale);
}

}  // namespace

template <class T>
void normalise_features(const TensorView& x, const std::int32_t* lengths) {
  const std::int64_t frames = x.shape[1], bins = x.shape[2];
  const std::int64_t vectors = (bins + kLanes<T> - 1) / kLanes<T>;
  parallel_ranges(
      x.shape[0] * vectors, frames * kLanes<T> * 3, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          const std::int64_t b = i / vectors, bin = i % vectors * kLanes<T>;
          T* row = x.as<T>() + b * frames * bins;
          const std::int64_t n = lengths[b], here = std::min<std::int64_t>(kLanes<T>, bins - bin);
          if (n > 0 && here == kLanes<T>)
            normalise<T>(row + bin, n, bins, WholeVectors{});
          else if (n > 0)
            normalise<T>(row + bin, n, bins, RaggedVector{here});
          for (std::int64_t t = n; t < frames; ++t) std::fill_n(row + t * bins + bin, here, T(0));
        }
      });
}

template void normalise_features<float>(const TensorView&, const std::int32_t*);
template void normalise_features<double>(const TensorView&, const std::int32_t*);

}  // namespace choir::cpu
