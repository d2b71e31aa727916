#pragma once
// How a FastConformer hears what is longer than a pass: recordings in windows, streams in chunks.
// Pure functions.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "choir/models/fastconformer/fastconformer_config.hpp"

namespace choir {

// Long recordings are cut into windows that overlap; of each only the frames are used that its
// edges do not reach. All lengths are frames of the encoder.

/// How far from an edge of a window frames may differ from those of the whole recording. Through
/// every block the distance grows by the context of attention and by the reach of the convolution;
/// it begins with that of the subsampling and of the features.
struct SpeechReach {
  static constexpr std::int64_t kAll = -1;  ///< every frame sees every other
  std::int64_t left = 0, right = 0;
  std::int64_t align = 1;  ///< windows begin and end at multiples: the chunks of attention
};
SpeechReach reach_of(const FastConformerConfig& config);

/// How recordings are cut.
struct WindowPlan {
  std::int64_t frames = 0;           ///< of a window; a shorter recording is one window
  std::int64_t left = 0, right = 0;  ///< overlap that is thrown away
  /// The result is that of the whole recording, however long it is.
  bool exact = false;
};
/// Windows of `wanted` frames, longer where the reach asks for it, at most `most` (and at least
/// eight chunks). The overlap is the reach, or, where that is more than a quarter of a window, an
/// eighth of it and at most kOverlapSeconds.
WindowPlan plan_windows(const FastConformerConfig& config, std::int64_t wanted, std::int64_t most);
inline constexpr double kOverlapSeconds = 4;

struct RecordingWindow {
  std::int64_t first = 0, end = 0;            ///< what the model sees ...
  std::int64_t keep_first = 0, keep_end = 0;  ///< ... and what is used of it
  friend bool operator==(const RecordingWindow&, const RecordingWindow&) = default;
};
/// The windows of a recording with so many frames: in order, kept frames follow on one another.
std::vector<RecordingWindow> windows_of(const WindowPlan& plan, std::int64_t frames,
                                        std::int64_t align);

/// What makes a model one that hears recordings only whole: keys of its deck with their values
/// ("model.causal = false"). Empty: it can be streamed.
std::vector<std::string> keys_against_streaming(const FastConformerConfig& config);

/// How a FastConformer hears a stream: chunk by chunk of its attention.
///
/// A frame of the encoder at t reads features s t - 2 (s - 1) ... s t (two frames back and none
/// ahead at each causal halving), a frame of features at f audio f hop - fft / 2 - 1 ... f hop +
/// fft / 2 (the 1: pre-emphasis). So a chunk of frames [n c, (n + 1) c) is computed from audio that
/// begins `overlap` frames before it, whose own results are thrown away, and ends `ahead` samples
/// behind the place of its last frame; what its frames see of earlier chunks beside that are keys
/// and values and the history of convolutions.
struct SpeechChunks {
  explicit SpeechChunks(const FastConformerConfig& config);

  std::int64_t frames = 0;         ///< c, of the encoder, in a chunk
  std::int64_t past = 0;           ///< frames before a chunk that it attends to: whole chunks
  std::int64_t overlap = 0;        ///< frames before a chunk that its audio begins
  std::int64_t frame_samples = 0;  ///< s hop
  std::int64_t ahead = 0;          ///< samples

  /// The first frame whose audio is needed for chunk n.
  std::int64_t first_frame(std::int64_t n) const { return std::max(n * frames - overlap, kZero); }
  /// Audio that makes `count` frames: to `ahead` samples behind the place of the last.
  std::int64_t samples_of(std::int64_t count) const { return (count - 1) * frame_samples + ahead; }
  /// Audio that must be there before chunk n is complete.
  std::int64_t audio_end(std::int64_t n) const { return samples_of((n + 1) * frames); }
  /// From the place of a frame to the end of the audio that its chunk waits for, at most.
  std::int64_t latency_samples() const { return samples_of(frames); }

 private:
  static constexpr std::int64_t kZero = 0;
};

}  // namespace choir
