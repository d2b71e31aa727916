#pragma once
// What can be understood of an agent: its codes become sound by a codec, and the sound words by a
// recogniser, both of other runs and in host memory.
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
  /// Collective over `world`. `codes`: of the codec that the dialogues were coded with, at most
  /// `frames` in one. Throws on all ranks: DeckError (runs of other families, of other sample
  /// rates, dialogues longer than the recogniser can hear), DataError (another codec than that of
  /// the dialogues, a recogniser without units of text), StorageError.
  AgentEar(const Runs& runs, const CodecDescription& codes, std::int64_t frames,
           Communicator& world);

  /// Local. Of `codes` [T, K], where those of control are silence.
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
