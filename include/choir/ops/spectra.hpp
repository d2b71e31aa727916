#pragma once
// Transforms of real frames and back, and the window and filters of log-mel features, for work on
// sound that the host does: vocoders and measures. Local, on the calling thread.
#include <cstdint>
#include <vector>

#include "choir/ops/log_mel.hpp"

namespace choir::ops {

/// X[k] = sum over n of x[n] exp(-2 pi i n k / N), k = 0 ... N/2, of many frames; T: float, double.
template <class T>
class RealTransform {
 public:
  /// N: 256, 512 or 1024; DeckError for others.
  explicit RealTransform(std::int64_t points);

  std::int64_t points() const { return points_; }
  std::int64_t bins() const { return points_ / 2 + 1; }
  /// frames [count, N], spectra [count, N/2 + 1, 2] (real, imaginary). A frame's spectrum depends
  /// on nothing else.
  void forward(std::int64_t count, const T* frames, T* spectra) const;
  /// The frames of which these are the spectra; imaginary parts of bins 0 and N/2 do not count.
  void inverse(std::int64_t count, const T* spectra, T* frames) const;

 private:
  std::int64_t points_;
  std::vector<T> roots_;    ///< exp(-2 pi i k / N)
  std::vector<int> slots_;  ///< where the transform of N/2 points leaves frequency k
};

/// A filter as its range of bins.
struct MelBand {
  std::int64_t first = 0;
  std::vector<double> weights;
};
/// What log_mel() windows with [window], the first of them at sample t hop - mel_window_lead() for
/// frame t; and its filters [mels].
std::vector<double> mel_window(const MelOptions& options);
std::int64_t mel_window_lead(const MelOptions& options);
std::vector<MelBand> mel_bands(const MelOptions& options);

}  // namespace choir::ops
