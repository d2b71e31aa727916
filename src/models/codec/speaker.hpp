#pragma once
// Recordings through a codec: sound to codes and back to sound, whole or frame by frame, and the
// comparison of both sounds. Local.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/models/codec/codec_coder.hpp"

namespace choir {

/// The result for one recording, or for a file of codes.
struct Spoken {
  std::string from, to;
  std::string codes_to;  ///< the file of codes that was written; "": none
  double seconds = 0;    ///< of sound
  std::int64_t frames = 0;
  MelDistance mel, sounding;  ///< of the decoded features, and of the sound
  std::optional<double> stoi;
  double worked = 0;             ///< seconds of computing
  std::vector<double> frame_ms;  ///< per frame, for streams
  double delay_ms = 0;
};

struct SpeakOptions {
  std::string channel;  ///< of recordings with several; see channel_choice_of()
  bool stream = false;  ///< process one frame at a time
};

class Speaker {
 public:
  Speaker(SpeakOptions options, CodecCoder& coder) : options_(std::move(options)), coder_(coder) {}

  /// Encodes the recording, decodes the codes and writes the sound to `target`, a WAV file, and the
  /// codes to `codes_target`, an array of NumPy, unless that is "". Throws DeckError if a target is
  /// the recording itself.
  Spoken recording(const std::string& file, const std::string& target,
                   const std::string& codes_target);
  /// Decodes a NumPy array of codes, [frames, codebooks]. Throws DataError for other arrays.
  Spoken codes(const std::string& file, const std::string& target);

 private:
  /// Feeds one frame at a time and collects the finished sound, as with a microphone and a
  /// loudspeaker.
  void stream(std::span<const std::int16_t> audio, std::vector<std::int32_t>& codes,
              std::vector<std::int16_t>& sound, Spoken& spoken);
  void say(CodeSpeaker& speaker, std::span<const std::int32_t> codes, std::int64_t t,
           std::vector<std::int16_t>& sound, Spoken& spoken);
  std::vector<std::int32_t> read_codes(const std::string& file) const;
  /// Writes [frames, codebooks] for read_codes() and NumPy: uint16 if its range suffices.
  void write_codes(std::vector<std::int32_t>& codes, const std::string& target) const;
  void write(const std::vector<std::int16_t>& sound, const std::string& target) const;

  SpeakOptions options_;
  CodecCoder& coder_;
};

}  // namespace choir
