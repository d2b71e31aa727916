#pragma once
// Long recordings are cut into windows that overlap; of each only the frames are used that its
// edges do not reach. All lengths are frames of the encoder. Pure functions.
#include <cstdint>
#include <vector>

#include "choir/model/fastconformer_config.hpp"

namespace choir {

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
/// Of a recording with so many frames: in order, kept frames follow on one another.
std::vector<RecordingWindow> windows_of(const WindowPlan& plan, std::int64_t frames,
                                        std::int64_t align);

}  // namespace choir
