#pragma once
// Overlap-add of frames to a waveform, for models that learn the phases of their frames.
#include <cstdint>
#include <span>
#include <vector>

namespace choir {

/// Converts a wave in [-1, 1) to 16-bit samples; values beyond are clipped.
std::vector<std::int16_t> pcm_of(std::span<const float> wave);

/// A stream of frames: sample s is the sum over r of frame r at s - r hop + lead, in the order of
/// r, so the result does not depend on how the frames are divided into pushes. Not thread-safe.
class OverlapAdd {
 public:
  /// Throws Error unless 0 <= lead < frame and 1 <= hop <= frame - lead.
  OverlapAdd(std::int64_t frame, std::int64_t hop, std::int64_t lead);

  /// Number of samples by which the output lags behind the end of the pushed frames.
  std::int64_t delay() const { return lead_; }
  /// Local. Adds frames [n, frame] and returns the samples that are final: hop per frame, less the
  /// delay.
  std::vector<std::int16_t> push(std::span<const float> frames);
  /// Local. Returns the remaining samples, so that all frames have hop samples each, and begins a
  /// new stream.
  std::vector<std::int16_t> finish();

 private:
  std::vector<std::int16_t> take(std::int64_t samples);

  std::int64_t frame_, hop_, lead_;
  std::int64_t pushed_ = 0, taken_ = 0;  ///< number of frames, of samples
  std::vector<float> sums_;              ///< sums from sample taken_ on
};

}  // namespace choir
