#pragma once
// Phases for magnitudes of overlapping frames, block by block. The frames of a block start with
// random phases, are iterated together until they are consistent with each other and with the sound
// before them, and are then fixed, except for the last ones, which wait for the next block.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/data/sound/vocoder.hpp"
#include "choir/ops/spectra.hpp"

namespace choir {

class PhaseRetrieval {
 public:
  explicit PhaseRetrieval(const VocoderOptions& options);

  std::int64_t bins() const { return transform_.bins(); }
  /// Samples of the window before the first sample of its frame.
  std::int64_t lead() const { return lead_; }
  /// Local. Takes magnitudes [n, bins], n at most `block`, and appends the final samples in [-1,
  /// 1); with `last` all samples, and a new stream begins.
  void advance(std::span<const float> magnitudes, bool last, std::vector<float>& to);

 private:
  void begin_frames(std::span<const float> magnitudes);
  void weigh();
  void overlap_add();
  void iterate();
  void fix(std::int64_t frames, std::vector<float>& to);
  /// Samples covered by the moving frames, from the first sample of the first window.
  std::int64_t reach() const { return (moving_ - 1) * hop_ + window_size_; }

  ops::RealTransform<float> transform_;
  std::vector<float> window_;
  std::int64_t hop_, window_size_, lead_, look_ahead_;
  int iterations_;
  float momentum_;
  PhiloxKey key_;

  std::int64_t first_ = 0, moving_ = 0;  ///< first moving frame, number of moving frames
  std::int64_t given_ = 0;               ///< samples returned so far
  std::vector<float> magnitudes_;        ///< [moving, bins]
  std::vector<float> spectra_, before_;  ///< [moving, bins, 2]: now, and as rebuilt before
  std::vector<float> frames_;            ///< [moving, fft]
  std::vector<float> sound_, scale_;     ///< [reach]: the sound, and 1 / the sum of squared windows
  std::vector<float> fixed_, fixed_weight_;  ///< [window - hop]: contribution of fixed frames
};

}  // namespace choir
