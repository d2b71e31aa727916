#pragma once
// Processing of audio longer than a pass: recordings in windows, streams in chunks. Pure functions.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "src/models/fastconformer/fastconformer_config.hpp"

namespace choir {

// Long recordings are cut into overlapping windows; only the frames that the edges of a window do
// not affect are used. All lengths are frames of the encoder.

/// The distance from an edge of a window within which frames may differ from those of the whole
/// recording. It begins with that of the features and the subsampling, and grows in every block by
/// the context of attention and by the reach of the convolution.
struct SpeechReach {
  static constexpr std::int64_t kAll = -1;  ///< every frame sees every other
  std::int64_t left = 0, right = 0;
  std::int64_t align = 1;  ///< windows begin and end at multiples of this: attention chunks
};
SpeechReach reach_of(const FastConformerConfig& config);

/// The division of recordings into windows.
struct WindowPlan {
  std::int64_t frames = 0;           ///< per window; a shorter recording is one window
  std::int64_t left = 0, right = 0;  ///< overlap that is discarded
  /// True if the result equals that of the whole recording, whatever its length.
  bool exact = false;
};
/// Windows of `wanted` frames, longer if the reach requires it, at most `most` (and at least eight
/// chunks). The overlap is the reach or, if that exceeds a quarter of a window, an eighth of a
/// window and at most kOverlapSeconds.
WindowPlan plan_windows(const FastConformerConfig& config, std::int64_t wanted, std::int64_t most);
inline constexpr double kOverlapSeconds = 4;

struct RecordingWindow {
  std::int64_t first = 0, end = 0;            ///< frames that the model sees
  std::int64_t keep_first = 0, keep_end = 0;  ///< frames that are used
  friend bool operator==(const RecordingWindow&, const RecordingWindow&) = default;
};
/// The windows of a recording of a number of frames, in order; their kept frames are contiguous.
std::vector<RecordingWindow> windows_of(const WindowPlan& plan, std::int64_t frames,
                                        std::int64_t align);

/// The deck keys, with their values, that prevent streaming ("model.causal = false"). Empty: the
/// model can be streamed.
std::vector<std::string> keys_against_streaming(const FastConformerConfig& config);

/// The chunks in which a FastConformer processes a stream, those of its attention.
///
/// A frame of the encoder at t reads features s t - 2 (s - 1) ... s t (two frames back and none
/// ahead at each causal halving), a frame of features at f audio f hop - fft / 2 - 1 ... f hop +
/// fft / 2 (the 1: pre-emphasis). So a chunk of frames [n c, (n + 1) c) is computed from audio that
/// begins `overlap` frames before it, whose own results are discarded, and ends `ahead` samples
/// after the position of its last frame. Its frames see earlier chunks only through keys and values
/// and through the history of convolutions.
struct SpeechChunks {
  explicit SpeechChunks(const FastConformerConfig& config);

  std::int64_t frames = 0;         ///< c, frames of the encoder in a chunk
  std::int64_t past = 0;           ///< frames before a chunk that it attends to: whole chunks
  std::int64_t overlap = 0;        ///< frames by which the audio of a chunk begins before it
  std::int64_t frame_samples = 0;  ///< s hop
  std::int64_t ahead = 0;          ///< samples

  /// The first frame whose audio is needed for chunk n.
  std::int64_t first_frame(std::int64_t n) const { return std::max(n * frames - overlap, kZero); }
  /// Samples for `count` frames: up to `ahead` samples after the position of the last.
  std::int64_t samples_of(std::int64_t count) const { return (count - 1) * frame_samples + ahead; }
  /// Samples that must have arrived before chunk n is complete.
  std::int64_t audio_end(std::int64_t n) const { return samples_of((n + 1) * frames); }
  /// Upper bound from the position of a frame to the end of the audio that its chunk waits for.
  std::int64_t latency_samples() const { return samples_of(frames); }

 private:
  static constexpr std::int64_t kZero = 0;
};

}  // namespace choir
