#pragma once
// A segment of a sound file, read in parts at the sample rate of a model. A file of any length
// needs the memory of one part.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/data/audio/audio_decoder.hpp"

namespace choir {

struct RecordingSource {
  std::string path;
  double offset = 0;     ///< seconds
  double duration = -1;  ///< seconds; negative: to the end
  ChannelChoice channel;
};

class Recording {
 public:
  /// Local. `rate` is in hertz. Throws the AudioError of AudioDecoder::from_file, and AudioError
  /// for a segment that does not exist (too_short, zero_length) and for several channels if none
  /// was chosen (channels).
  static Recording open(const RecordingSource& source, int rate);

  /// Number of samples at the rate of the model.
  std::int64_t samples() const { return samples_; }
  double seconds() const { return static_cast<double>(samples_) / rate_; }

  /// Local. Returns samples [first, first + count), with zeros past the end. If the rates differ,
  /// each part is converted together with kMargin seconds on both sides, which exceeds the reach of
  /// the filter, so the parts equal the conversion of the whole except for the rounding to 16 bits.
  /// If calls ascend in `first`, little is decoded twice. Throws AudioError (unreadable,
  /// not_finite, too_short).
  std::vector<std::int16_t> read(std::int64_t first, std::int64_t count);

  static constexpr double kMargin = 0.2;

 private:
  Recording(AudioDecoder decoder, const RecordingSource& source, int rate);

  AudioDecoder decoder_;
  ChannelChoice channel_;
  int rate_;
  std::int64_t native_first_ = 0, native_count_ = 0;  ///< frames of the file
  std::int64_t samples_ = 0;
};

}  // namespace choir
