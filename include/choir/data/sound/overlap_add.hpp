#pragma once
// Frames that overlap to a waveform, as a model makes them that has learnt their phases.
#include <cstdint>
#include <span>
#include <vector>

namespace choir {

/// 16-bit samples of a wave in [-1, 1); what is beyond is cut.
std::vector<std::int16_t> pcm_of(std::span<const float> wave);

/// A stream of frames: sample s is the sum over r of frame r at s - r hop + lead, in the order of
/// r, so the same however the frames were cut into pushes. Not thread safe.
class OverlapAdd {
 public:
  /// Error unless 0 <= lead < frame and 1 <= hop <= frame - lead.
  OverlapAdd(std::int64_t frame, std::int64_t hop, std::int64_t lead);

  /// So many samples behind the end of the frames pushed does the sound end that came out.
  std::int64_t delay() const { return lead_; }
  /// Local. frames [n, frame]; samples that are finished, hop for each frame but for the delay.
  std::vector<std::int16_t> push(std::span<const float> frames);
  /// Local. The rest, so that all frames have hop samples each; a new stream begins.
  std::vector<std::int16_t> finish();

 private:
  std::vector<std::int16_t> take(std::int64_t samples);

  std::int64_t frame_, hop_, lead_;
  std::int64_t pushed_ = 0, taken_ = 0;  ///< frames, samples
  std::vector<float> sums_;              ///< from sample taken_ on
};

}  // namespace choir
