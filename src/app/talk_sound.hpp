#pragma once
// The two sides of a dialogue as sound: the user from a recording or a microphone, the agent into a
// file and, in a live dialogue, a loudspeaker.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "choir/data/audio/live_sound.hpp"
#include "choir/data/audio/recording.hpp"
#include "choir/data/audio/wav_writer.hpp"
#include "choir/models/codec/codec_voice.hpp"
#include "choir/train/loop/stop_request.hpp"

namespace choir {

/// What the user says, in order.
class UserSound {
 public:
  virtual ~UserSound() = default;
  /// There are at most so many.
  virtual std::int64_t samples() const = 0;
  /// Samples [first, first + count); fewer where the user ends before.
  virtual std::vector<std::int16_t> read(std::int64_t first, std::int64_t count) = 0;
  virtual void finish() {}
};

class RecordedUser final : public UserSound {
 public:
  /// DataError when the recording is empty.
  RecordedUser(const RecordingSource& source, int sample_rate);
  std::int64_t samples() const override { return recording_.samples(); }
  std::vector<std::int16_t> read(std::int64_t first, std::int64_t count) override;

 private:
  Recording recording_;
};

/// A microphone for so many samples, or until Ctrl-C; what it heard is kept in a file.
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

/// The agent's codes as sound, frame by frame. Frames of control codes are silent.
class AgentSound {
 public:
  /// `loudspeaker`: "" for a file alone.
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

}  // namespace choir
