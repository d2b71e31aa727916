#pragma once
// The two sides of a dialogue with a duplex model: the user's sound from a recording or a
// microphone, the agent's sound to a file and a loudspeaker, and the agent's text. Local.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/live_sound.hpp"
#include "src/data/audio/waveform.hpp"
#include "src/data/dialogues/dialogue_channels.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/codec/codec_coder.hpp"
#include "src/run/stop_request.hpp"

namespace choir {

/// The sound of the user, in order.
class UserSound {
 public:
  virtual ~UserSound() = default;
  /// The largest number of samples.
  virtual std::int64_t samples() const = 0;
  /// Returns samples [first, first + count), fewer at the user's end.
  virtual std::vector<std::int16_t> read(std::int64_t first, std::int64_t count) = 0;
  virtual void finish() {}
};

class RecordedUser final : public UserSound {
 public:
  /// Throws DataError if the recording is empty.
  RecordedUser(const RecordingSource& source, int sample_rate);
  std::int64_t samples() const override { return recording_.samples(); }
  std::vector<std::int16_t> read(std::int64_t first, std::int64_t count) override;

 private:
  Recording recording_;
};

/// A microphone, until a number of samples is recorded or Ctrl-C; the sound is kept in a file.
class LiveUser final : public UserSound {
 public:
  LiveUser(const std::string& microphone, const std::string& path, int sample_rate,
           std::int64_t samples);
  std::int64_t samples() const override { return samples_; }
  std::vector<std::int16_t> read(std::int64_t first, std::int64_t count) override;
  void finish() override;

 private:
  SoundDevice microphone_;
  WavWriter file_;
  StopRequest stop_;
  std::int64_t samples_;
};

/// Turns the agent's codes into sound, frame by frame. Frames of control codes are silent.
class AgentSound {
 public:
  /// `loudspeaker`: "" writes only the file.
  AgentSound(CodecCoder& coder, const CodecDescription& codec, const std::string& path,
             const std::string& loudspeaker);

  void add(std::vector<std::int32_t> codes);
  void finish();

 private:
  void say(std::span<const std::int16_t> sound);

  const CodecDescription& codec_;
  CodeSpeaker speaker_;
  WavWriter file_;
  std::optional<SoundDevice> loudspeaker_;
};

/// Turns the tokens of the agent into the text of its turn.
class AgentText {
 public:
  /// `units` must outlive this.
  AgentText(const DialogueControls& controls, const Vocabulary& units)
      : controls_(controls), units_(units) {}

  std::string add(std::int32_t token) {
    if (token == controls_.bos) first_ = true;
    if (token == controls_.pad || token == controls_.bos || token == controls_.eos) return {};
    std::string piece = units_.piece(token);
    if (first_ && piece.starts_with(' ')) piece.erase(0, 1);
    first_ = false;
    return characters_.push(piece);
  }

 private:
  DialogueControls controls_;
  const Vocabulary& units_;
  Utf8Stream characters_;
  bool first_ = true;
};

}  // namespace choir
