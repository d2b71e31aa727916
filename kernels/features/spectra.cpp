// Floor: 2.5 N log2(N/2) + 5 N FLOP per frame (14 k at 512) and 8 N + 8 bytes in f32. One frame per
// vector lane is processed at a time, transposed on input and output.

#include "kernels/features/spectra.hpp"

#include <algorithm>

#include "kernels/features/features.hpp"
#include "kernels/features/frame_lanes.hpp"

namespace choir {
namespace cpu {
namespace {

/// Transposes rows [count, width] to lanes: lane i of to[n] is element n of row i. Missing rows are
/// zero.
template <class T>
void rows_to_lanes(const T* rows, std::int64_t count, std::int64_t width, Vec<T>* to) {
  constexpr std::int64_t kCount = kLanes<T>;
  for (std::int64_t n = 0; n < width; n += kCount) {
    Vec<T> square[kCount] = {};
    const std::int64_t here = std::min(kCount, width - n);
    for (std::int64_t i = 0; i < count; ++i) {
      const T* from = rows + i * width + n;
      square[i] = here == kCount ? load(from) : load_part(from, here);
    }
    transpose_square(square);
    std::copy(square, square + here, to + n);
  }
}

template <class T>
void lanes_to_rows(const Vec<T>* lanes, std::int64_t count, std::int64_t width, T* rows) {
  constexpr std::int64_t kCount = kLanes<T>;
  for (std::int64_t n = 0; n < width; n += kCount) {
    Vec<T> square[kCount] = {};
    const std::int64_t here = std::min(kCount, width - n);
    std::copy(lanes + n, lanes + n + here, square);
    transpose_square(square);
    for (std::int64_t i = 0; i < count; ++i) {
      T* to = rows + i * width + n;
      here == kCount ? store(to, square[i]) : store_part(to, square[i], here);
    }
  }
}

/// Computes X[k], k = 0 ... kHalf, from the output of transform() for 2 kHalf real numbers.
template <class T, int kHalf>
void halves_apart(const Vec<T>* z, const T* roots, const int* slots, Vec<T>* spectrum) {
  using V = Vec<T>;
  for (int k = 0; k <= kHalf / 2; ++k) {
    const V *a = z + slots[k], *b = z + slots[k == 0 ? 0 : kHalf - k];
    const V even_re = a[0] + b[0], even_im = a[1] - b[1];
    const V odd_re = a[1] + b[1], odd_im = b[0] - a[0];
    const T* w = roots + 2 * k;
    const V re = odd_re * w[0] - odd_im * w[1], im = odd_re * w[1] + odd_im * w[0];
    V *low = spectrum + 2 * k, *high = spectrum + 2 * (kHalf - k);
    high[0] = (even_re - re) * T(0.5), high[1] = (im - even_im) * T(0.5);
    low[0] = (even_re + re) * T(0.5), low[1] = (even_im + im) * T(0.5);
  }
}

/// The inverse: computes conjugates of Z[k] in their order, so that the inverse transform is a
/// forward one.
template <class T, int kHalf>
void halves_together(const Vec<T>* spectrum, const T* roots, Vec<T>* z) {
  using V = Vec<T>;
  for (int k = 0; k < kHalf; ++k) {
    const V *a = spectrum + 2 * k, *b = spectrum + 2 * (kHalf - k);
    const V a_im = k == 0 ? V{} : a[1], b_im = k == 0 ? V{} : b[1];
    const V even_re = a[0] + b[0], even_im = a_im - b_im;
    const V odd_re = a[0] - b[0], odd_im = a_im + b_im;
    const T* w = roots + 2 * k;  // multiplication by its conjugate rotates O back
    const V re = odd_re * w[0] + odd_im * w[1], im = odd_im * w[0] - odd_re * w[1];
    z[2 * k] = even_re - im, z[2 * k + 1] = -(even_im + re);
  }
}

template <class T, int kPoints>
void forward(std::int64_t count, const T* frames, T* spectra, const T* roots, const int* slots) {
  constexpr std::int64_t kCount = kLanes<T>, kWidth = kPoints + 2;
  alignas(64) Vec<T> lanes[kPoints], spectrum[kWidth];
  for (std::int64_t first = 0; first < count; first += kCount) {
    const std::int64_t here = std::min(kCount, count - first);
    rows_to_lanes(frames + first * kPoints, here, kPoints, lanes);
    transform<T, kPoints / 2>(lanes, roots);
    halves_apart<T, kPoints / 2>(lanes, roots, slots, spectrum);
    lanes_to_rows(spectrum, here, kWidth, spectra + first * kWidth);
  }
}

template <class T, int kPoints>
void inverse(std::int64_t count, const T* spectra, T* frames, const T* roots, const int* slots) {
  constexpr std::int64_t kCount = kLanes<T>, kWidth = kPoints + 2;
  constexpr T kScale = T(1) / T(kPoints);
  alignas(64) Vec<T> spectrum[kWidth], lanes[kPoints], ordered[kPoints];
  for (std::int64_t first = 0; first < count; first += kCount) {
    const std::int64_t here = std::min(kCount, count - first);
    rows_to_lanes(spectra + first * kWidth, here, kWidth, spectrum);
    halves_together<T, kPoints / 2>(spectrum, roots, lanes);
    transform<T, kPoints / 2>(lanes, roots);
    for (int n = 0; n < kPoints / 2; ++n) {
      const Vec<T>* at = lanes + slots[n];
      ordered[2 * n] = at[0] * kScale, ordered[2 * n + 1] = at[1] * -kScale;
    }
    lanes_to_rows(ordered, here, kPoints, frames + first * kPoints);
  }
}

}  // namespace
}  // namespace cpu

namespace ops {

template <class T>
RealTransform<T>::RealTransform(std::int64_t points) : points_(points) {
  MelOptions options;
  options.fft = points;
  options.window = std::min<std::int64_t>(options.window, points);
  options.mels = 1;
  check(options);
  const std::vector<double> tables = mel_tables(options);
  const auto roots = tables.begin() + mel_table_layout(options).roots;
  for (std::int64_t i = 0; i < 2 * points; ++i) roots_.push_back(static_cast<T>(roots[i]));
  const auto half = static_cast<int>(points / 2);
  for (int k = 0; k < half; ++k) slots_.push_back(2 * spectrum_position(k, half));
}

template <class T>
void RealTransform<T>::forward(std::int64_t count, const T* frames, T* spectra) const {
  switch (points_) {
    case 256:
      return cpu::forward<T, 256>(count, frames, spectra, roots_.data(), slots_.data());
    case 512:
      return cpu::forward<T, 512>(count, frames, spectra, roots_.data(), slots_.data());
    default:
      return cpu::forward<T, 1024>(count, frames, spectra, roots_.data(), slots_.data());
  }
}

template <class T>
void RealTransform<T>::inverse(std::int64_t count, const T* spectra, T* frames) const {
  switch (points_) {
    case 256:
      return cpu::inverse<T, 256>(count, spectra, frames, roots_.data(), slots_.data());
    case 512:
      return cpu::inverse<T, 512>(count, spectra, frames, roots_.data(), slots_.data());
    default:
      return cpu::inverse<T, 1024>(count, spectra, frames, roots_.data(), slots_.data());
  }
}

template class RealTransform<float>;
template class RealTransform<double>;

std::vector<double> mel_window(const MelOptions& options) {
  check(options);
  std::vector<double> tables = mel_tables(options);
  tables.resize(static_cast<std::size_t>(options.window));
  return tables;
}

std::int64_t mel_window_lead(const MelOptions& options) {
  return mel_lead(options);
}

std::vector<MelBand> mel_bands(const MelOptions& options) {
  check(options);
  const std::vector<double> tables = mel_tables(options);
  const MelTableLayout at = mel_table_layout(options);
  std::vector<MelBand> bands;
  for (std::int64_t m = 0; m < options.mels; ++m) {
    const double* band = tables.data() + at.bands + 3 * m;
    const double* weights = tables.data() + at.weights + static_cast<std::int64_t>(band[2]);
    bands.push_back({static_cast<std::int64_t>(band[0]),
                     {weights, weights + static_cast<std::int64_t>(band[1])}});
  }
  return bands;
}

}  // namespace ops
}  // namespace choir
