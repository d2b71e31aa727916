#pragma once
// How many frames an encoder makes of an utterance, as far as batches and CTC need to know.
#include <cstdint>

namespace choir {

struct SpeechFrames {
  std::int64_t hop = 160;  ///< samples between frames of features
  int stages = 3;          ///< halvings of time by the encoder
  bool causal = false;     ///< a halving of n > 0 frames gives n / 2 + 1, else ceil(n / 2)

  /// Frames that count after `stage` halvings (0: of the features, samples / hop).
  std::int64_t after(int stage, std::int64_t samples) const {
    std::int64_t n = samples / hop;
    for (int k = 0; k < stage; ++k) n = n == 0 ? 0 : causal ? n / 2 + 1 : (n + 1) / 2;
    return n;
  }
  std::int64_t frames(std::int64_t samples) const { return after(stages, samples); }
  /// What padded lengths are multiples of.
  std::int64_t multiple() const { return hop << stages; }
  std::int64_t padded(std::int64_t samples) const {
    const std::int64_t m = multiple();
    return samples <= m ? m : (samples + m - 1) / m * m;
  }
};

}  // namespace choir
