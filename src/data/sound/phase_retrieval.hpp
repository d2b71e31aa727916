#pragma once
// Phases for magnitudes of overlapping frames, block by block: a block's frames start at random,
// move together until they agree with each other and with the sound before them, and are then
// fixed, but for the last of them, which wait for what comes next.
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
  /// Samples of its window before a frame's first.
  std::int64_t lead() const { return lead_; }
  /// Local. magnitudes [n, bins], n at most `block`. Appends samples in [-1, 1) that are finished;
  /// with `last` all of them, and a new stream begins.
  void advance(std::span<const float> magnitudes, bool last, std::vector<float>& to);

 private:
  void begin_frames(std::span<const float> magnitudes);
  void weigh();
  void overlap_add();
  void iterate();
  void fix(std::int64_t frames, std::vector<float>& to);
  /// Samples of the frames that move, from the first sample of the first frame's window.
  std::int64_t reach() const { return (moving_ - 1) * hop_ + window_size_; }

  ops::RealTransform<float> transform_;
  std::vector<float> window_;
  std::int64_t hop_, window_size_, lead_, look_ahead_;
  int iterations_;
  float momentum_;
  PhiloxKey key_;

  std::int64_t first_ = 0, moving_ = 0;  ///< frames: the first whose phase moves, how many do
  std::int64_t given_ = 0;               ///< samples that came out
  std::vector<float> magnitudes_;        ///< [moving, bins]
  std::vector<float> spectra_, before_;  ///< [moving, bins, 2]: now, and as it was rebuilt before
  std::vector<float> frames_;            ///< [moving, fft]
  std::vector<float> sound_, scale_;     ///< [reach]: the sound, and 1 / the windows' squares
  std::vector<float> fixed_, fixed_weight_;  ///< [window - hop]: what fixed frames put there
};

}  // namespace choir
