#pragma once
// The words of an agent: a codec converts its codes to sound, and a recogniser the sound to words.
// Both come from other runs and compute in host memory.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "choir/data/codes/code_file.hpp"
#include "choir/data/vocabulary/vocabulary.hpp"
#include "choir/models/codec/codec_coder.hpp"
#include "choir/models/fastconformer/transcriber.hpp"
#include "choir/train/step/whole_model.hpp"

namespace choir {

class AgentEar {
 public:
  struct Runs {
    std::string codec, recogniser;  ///< eval.codec and eval.recogniser
  };
  /// Collective over `world`. `codes`: the codec of the dialogues, which have at most `frames`
  /// frames. Throws on all ranks: DeckError (runs of other families or sample rates, dialogues
  /// longer than the recogniser can transcribe), DataError (another codec than that of the
  /// dialogues, a recogniser without text units), StorageError.
  AgentEar(const Runs& runs, const CodecDescription& codes, std::int64_t frames,
           Communicator& world);

  /// Local. Transcribes `codes` [T, K], where control codes are silence.
  std::string words(std::span<const std::int32_t> codes);

 private:
  std::string transcribed(std::span<const std::int16_t> audio);

  CodecDescription codes_;
  WholeModel codec_, recogniser_;
  std::unique_ptr<CodecCoder> coder_;
  ModelInstance* hearing_ = nullptr;  ///< of recogniser_
  std::optional<TranscriptMaker> maker_;
};

}  // namespace choir
