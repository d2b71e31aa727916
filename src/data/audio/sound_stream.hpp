#pragma once
// The decoded frames of one recording, in order, at its own sample rate. WAV, AIFF, AU, CAF, W64,
// FLAC, Ogg Vorbis and Opus, and the other formats of libsndfile are read by libsndfile, MP3 by
// libmpg123. Local.
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "src/data/audio/byte_source.hpp"

namespace choir {

/// Not thread safe. Samples of several channels alternate.
class SoundStream {
 public:
  virtual ~SoundStream() = default;

  struct Form {
    int rate = 0, channels = 0;
    /// Exact for files that are not damaged. It is counted by decoding where the header has no
    /// number, or one that its format does not guarantee.
    std::int64_t frames = 0;
    bool narrow = false;        ///< 16-bit integers hold every sample exactly
    std::int64_t promised = 0;  ///< frames that the header gives if the file has fewer; else 0
  };
  const Form& form() const { return form_; }

  /// Moves to a frame: read() then returns the same samples as decoding from the beginning does. A
  /// format whose decoder cannot seek exactly is decoded from its beginning. Returns false if the
  /// frame does not exist.
  virtual bool seek(std::int64_t frame) = 0;
  /// Reads at most `count` frames and returns their number, which is smaller at the end and after a
  /// fault.
  virtual std::int64_t read(float* to, std::int64_t count) = 0;
  virtual std::int64_t read(std::int16_t* to, std::int64_t count) = 0;
  /// Reason why the last read() ended early; "" at the end of the recording.
  virtual std::string fault() const = 0;

 protected:
  Form form_;
};

/// `name` is used in messages. Throws AudioError {unreadable, zero_length} for bytes that are no
/// sound, or whose sound cannot be read exactly.
std::unique_ptr<SoundStream> open_sound(std::unique_ptr<ByteSource> source,
                                        const std::string& name);

/// True if the bytes begin like MPEG audio: an ID3 tag or the header of a frame.
bool begins_like_mpeg(const ByteSource& source);
/// Opens MP3 (MPEG 1, 2, 2.5, layers 1 to 3). Throws AudioError, also in a build without libmpg123.
std::unique_ptr<SoundStream> open_mpeg(std::unique_ptr<ByteSource> source, const std::string& name);

}  // namespace choir
