#pragma once
// A stretch of a sound file, read in parts at the rate of a model: a file of any length needs the
// memory of one part.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/data/audio/audio_decoder.hpp"

namespace choir {

struct RecordingSource {
  std::string path;
  double offset = 0;     ///< seconds
  double duration = -1;  ///< seconds; below 0: to the end
  ChannelChoice channel;
};

class Recording {
 public:
  /// Local. `rate` in hertz. Throws AudioError: what AudioDecoder::from_file does, a stretch that
  /// is not there (too_short, zero_length), several channels and none chosen (channels).
  static Recording open(const RecordingSource& source, int rate);

  /// At `rate`.
  std::int64_t samples() const { return samples_; }
  double seconds() const { return static_cast<double>(samples_) / rate_; }

  /// Local. Samples [first, first + count), zeros behind the end. Of another rate each part is
  /// converted with kMargin seconds around it: beyond the reach of the filter, so that parts are
  /// those of the whole but for the rounding to 16 bits. In order of `first`, little is decoded
  /// twice. Throws AudioError (unreadable, not_finite, too_short).
  std::vector<std::int16_t> read(std::int64_t first, std::int64_t count);

  static constexpr double kMargin = 0.2;

 private:
  Recording(AudioDecoder decoder, const RecordingSource& source, int rate);

  AudioDecoder decoder_;
  ChannelChoice channel_;
  int rate_;
  std::int64_t native_first_ = 0, native_count_ = 0;  ///< of the file
  std::int64_t samples_ = 0;
};

}  // namespace choir
