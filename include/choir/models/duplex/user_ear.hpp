#pragma once
// What the user of a dialogue says, in words as they come: a recogniser of another run listens
// beside the duplex model, chunk by chunk, in host memory.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/data/speech/ctc_decoder.hpp"
#include "choir/data/vocabulary/utf8_stream.hpp"
#include "choir/data/vocabulary/vocabulary.hpp"
#include "choir/models/fastconformer/speech_stream.hpp"
#include "choir/models/fastconformer/transcriber.hpp"
#include "choir/train/step/whole_model.hpp"

namespace choir {

class UserEar {
 public:
  /// Collective over `world`. `recogniser`: a run; `key` is what messages call it; `sample_rate`:
  /// of the audio. Throws on all ranks: DeckError (a run of another family or sample rate, one that
  /// hears recordings only whole), DataError (no units of text), StorageError.
  UserEar(const std::string& recogniser, const std::string& key, int sample_rate,
          Communicator& world);

  /// Local. More audio, in order. The characters that became known by it: those of the best symbol
  /// of every frame of the chunks that are complete.
  std::string hear(std::span<const std::int16_t> audio);
  /// Local. The last ones.
  std::string end();

 private:
  std::string hear_chunks();

  WholeModel run_;
  std::optional<Vocabulary> units_;
  std::optional<TranscriptMaker> maker_;
  std::optional<SpeechStream> stream_;
  std::optional<CtcCollapse> labels_;
  std::size_t told_ = 0;  ///< labels
  Utf8Stream characters_;
  std::vector<float> scores_;
  TranscriptMaker::Frames frames_;
};

}  // namespace choir
