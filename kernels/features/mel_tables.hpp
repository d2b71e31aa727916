#pragma once
// Tables of the log-mel kernels: the window, the roots of unity of the transform, and the filters
// as ranges of bins. A triangle of the Slaney scale is zero except for a few neighbouring bins, and
// every bin is in at most two of them, so all ranges together have at most fft + 2 weights.

#include <cstdint>
#include <vector>

#include "choir/core/host_device.hpp"
#include "kernels/features/features.hpp"

namespace choir {

/// Offsets of the parts in the tables, in units of f64 numbers.
struct MelTableLayout {
  std::int64_t window;   ///< samples of the window, padded with zeros to a multiple of 16; begins
                         ///< at 0
  std::int64_t roots;    ///< real and imaginary part of exp(-2 pi i k / fft), k = 0 ... fft - 1
  std::int64_t bands;    ///< per mel: first bin, number of bins, offset of its weights in `weights`
  std::int64_t weights;  ///< [fft + 2]
  std::int64_t size;
};

inline MelTableLayout mel_table_layout(const ops::MelOptions& options) {
  const std::int64_t window = (options.window + 15) / 16 * 16, roots = window;
  const std::int64_t bands = roots + 2 * options.fft, weights = bands + 3 * options.mels;
  return {window, roots, bands, weights, weights + options.fft + 2};
}

/// Frame t begins at sample t hop - mel_lead(): the window is centred in the transform, which is
/// centred at t hop.
inline std::int64_t mel_lead(const ops::MelOptions& options) {
  return options.fft / 2 - (options.fft - options.window) / 2;
}

/// Computes the tables. Each number is within half a unit of f64 of the exact one; weights of
/// filters within (mels + 2) / 4 units of the filter's height more.
std::vector<double> mel_tables(const ops::MelOptions& options);

/// Position of frequency k after an in-place transform of `count` = 4^n or 2 4^n points by
/// decimation in frequency, factors of 4 first.
CHOIR_HOST_DEVICE inline int spectrum_position(int k, int count) {
  int position = 0;
  for (; count >= 4; count /= 4, k /= 4) position += k % 4 * (count / 4);
  return count == 2 ? position + k % 2 : position;
}

}  // namespace choir
