#pragma once
// Transforms of real frames and their inverses, and the window and filters of log-mel features, for
// audio work on the host: vocoders and metrics. Local, on the calling thread.

#include <cstdint>
#include <vector>

#include "kernels/features/features.hpp"

namespace choir::ops {

/// X[k] = sum over n of x[n] exp(-2 pi i n k / N), k = 0 ... N/2, for many frames; T is float or
/// double.
template <class T>
class RealTransform {
 public:
  /// N is 256, 512 or 1024; throws DeckError for other sizes.
  explicit RealTransform(std::int64_t points);

  std::int64_t points() const { return points_; }
  std::int64_t bins() const { return points_ / 2 + 1; }
  /// frames [count, N], spectra [count, N/2 + 1, 2] (real, imaginary). The spectrum of a frame
  /// depends on that frame alone.
  void forward(std::int64_t count, const T* frames, T* spectra) const;
  /// Computes the frames with these spectra; imaginary parts of bins 0 and N/2 are ignored.
  void inverse(std::int64_t count, const T* spectra, T* frames) const;

 private:
  std::int64_t points_;
  std::vector<T> roots_;    ///< exp(-2 pi i k / N)
  std::vector<int> slots_;  ///< position of frequency k in the transform of N/2 points
};

/// A filter as a range of bins.
struct MelBand {
  std::int64_t first = 0;
  std::vector<double> weights;
};
/// The window [window] and the filters [mels] of log_mel(). The window of frame t begins at sample
/// t hop - mel_window_lead().
std::vector<double> mel_window(const MelOptions& options);
std::int64_t mel_window_lead(const MelOptions& options);
std::vector<MelBand> mel_bands(const MelOptions& options);

}  // namespace choir::ops
