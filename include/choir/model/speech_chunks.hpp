#pragma once
// How a FastConformer hears a stream: chunk by chunk of its attention. Pure functions.
//
// A frame of the encoder at t reads features s t - 2 (s - 1) ... s t (two frames back and none
// ahead at each causal halving), a frame of features at f audio f hop - fft / 2 - 1 ... f hop + fft
// / 2 (the 1: pre-emphasis). So a chunk of frames [n c, (n + 1) c) is computed from audio that
// begins `overlap` frames before it, whose own results are thrown away, and ends `ahead` samples
// behind the place of its last frame; what its frames see of earlier chunks beside that are keys
// and values and the history of convolutions.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "choir/model/fastconformer_config.hpp"

namespace choir {

/// What makes a model one that hears recordings only whole: keys of its deck with their values
/// ("model.causal = false"). Empty: it can be streamed.
std::vector<std::string> keys_against_streaming(const FastConformerConfig& config);

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
