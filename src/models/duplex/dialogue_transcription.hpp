#pragma once
// Transcription of both sides of a dialogue by runs of other families: the agent's codes become
// sound by a codec, and the sound words by a recogniser; a recogniser follows the user chunk by
// chunk.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/data/dialogues/code_file.hpp"
#include "src/data/speech/ctc_decoder.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/codec/codec_coder.hpp"
#include "src/models/duplex/duplex_config.hpp"
#include "src/models/fastconformer/speech_stream.hpp"
#include "src/models/fastconformer/transcriber.hpp"
#include "src/run/loaded_model.hpp"

namespace choir {

/// DeckError unless `right`; `wanted` is the required family.
void require_family(const ReplicatedModel& run, bool right, const std::string& key,
                    const char* wanted);
/// The text units of a recogniser of audio with this rate. DeckError for another family or rate,
/// DataError if it has no units.
Vocabulary units_of_recogniser(const ReplicatedModel& run, const std::string& key, int sample_rate);

class AgentEar {
 public:
  struct Runs {
    std::string codec, recogniser;  ///< eval.codec and eval.recogniser
    ScorerDevice device = ScorerDevice::cpu;
  };
  /// Opens the runs and reads everything but their parameters. Collective over `world`. `codes`:
  /// the codec of the dialogues, which have at most `frames` frames. Throws on all ranks: DeckError
  /// (runs of other families or sample rates, dialogues longer than the recogniser can transcribe),
  /// DataError (a recogniser without text units), StorageError.
  AgentEar(const FamilyTable& table, const Runs& runs, const CodecDescription& codes,
           std::int64_t frames, Communicator& world);

  /// Adds the memory of both models to the plan of a rank that computes on a device like `device`;
  /// nullptr: on a CPU. Local.
  void add_to(MemoryPlan& plan, const Device* device) const;
  /// Loads both models, once. `device`: that of the rank, which must outlive this. Returns a
  /// sentence about the device that they compute on. Collective over `world`. Throws on all ranks:
  /// DeckError (models in fp64, which GPUs do not compute), DataError (another codec than that of
  /// the dialogues), StorageError.
  std::string load(Device& device, Communicator& world);

  /// Local, after load(). Transcribes `codes` [T, K], where control codes are silence.
  std::string words(std::span<const std::int32_t> codes);

 private:
  struct Arenas {
    std::size_t codec = 0, recogniser = 0;
  };
  Arenas plan_arenas(const Device* target) const;
  std::string transcribed(std::span<const std::int16_t> audio);

  CodecDescription codes_;
  std::int64_t samples_;  ///< of the longest dialogue
  ScorerDevice where_;
  CpuDevice cpu_;
  ReplicatedModel codec_, recogniser_;
  std::unique_ptr<CodecCoder> coder_;
  ModelInstance* hearing_ = nullptr;  ///< of recogniser_
  HostBuffer scores_;
  std::optional<TranscriptMaker> maker_;
};

class UserEar {
 public:
  /// Collective over `world`. `recogniser`: a run; `key`: its name in messages; `sample_rate`: that
  /// of the audio. Throws on all ranks: DeckError (a run of another family or sample rate, or one
  /// that cannot stream), DataError (no text units), StorageError.
  UserEar(const FamilyTable& table, const std::string& recogniser, const std::string& key,
          int sample_rate, Communicator& world);

  /// Local. Adds more audio, in order. Returns the characters that became known: those of the best
  /// symbols of all frames in completed chunks.
  std::string hear(std::span<const std::int16_t> audio);
  /// Local. Ends the audio and returns the last characters.
  std::string end();

 private:
  std::string hear_chunks();

  CpuDevice cpu_;
  ReplicatedModel run_;
  std::optional<Vocabulary> units_;
  std::optional<TranscriptMaker> maker_;
  std::optional<SpeechStream> stream_;
  std::optional<CtcCollapse> labels_;
  std::size_t told_ = 0;  ///< labels returned so far
  Utf8Stream characters_;
  std::vector<float> scores_;
  TranscriptMaker::Frames frames_;
};

}  // namespace choir
