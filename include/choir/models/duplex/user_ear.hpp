#pragma once
// The words of the user of a dialogue: a recogniser of another run transcribes the audio beside the
// duplex model, chunk by chunk, in host memory.
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
  /// Collective over `world`. `recogniser`: a run; `key`: its name in messages; `sample_rate`: that
  /// of the audio. Throws on all ranks: DeckError (a run of another family or sample rate, or one
  /// that cannot stream), DataError (no text units), StorageError.
  UserEar(const std::string& recogniser, const std::string& key, int sample_rate,
          Communicator& world);

  /// Local. Adds more audio, in order. Returns the characters that became known: those of the best
  /// symbols of all frames in completed chunks.
  std::string hear(std::span<const std::int16_t> audio);
  /// Local. Ends the audio and returns the last characters.
  std::string end();

 private:
  std::string hear_chunks();

  WholeModel run_;
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
