#pragma once
// Micro-batches of dialogues for full-duplex models. The reader of speech (SpeechDataset) reads the
// user's audio with the agent's text channel as its labels; the agent's codes are read from the
// files beside its audio. Host memory; plans, buckets, blends and cursors are those of speech.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/data/dialogues/code_file.hpp"
#include "src/data/dialogues/dialogue_channels.hpp"
#include "src/data/dialogues/dialogue_manifest.hpp"
#include "src/data/speech/speech_dataset.hpp"

namespace choir {

/// Views of memory owned by DialogueBatches: B dialogues in rows of R = frames - 1 of the longest;
/// see fill_dialogue_rows.
struct DialogueBatch {
  const SpeechBatch* user = nullptr;  ///< audio, lengths and ids; the labels are the text channel
  TensorView text;                    ///< [B*R] i32; padding 0
  TensorView text_targets;            ///< [B*R] i32; padding -1
  TensorView codes;                   ///< [B*R, K] i32, delayed, with control codes; padding 0
  TensorView code_targets;            ///< [B*R*K] i32; padding -1
  std::int64_t rows = 0, frames = 0;  ///< B, R
  std::int64_t text_counted = 0, codes_counted = 0;  ///< targets of this micro-batch
};

struct DialogueConfig {
  /// Options of the reader of the user's audio. Its folders are those of `choir prepare dialogues`;
  /// open() sets labels, filters for CTC and vocabulary.
  SpeechDataConfig user;
  std::string codes = "codec";  ///< NAME of agent/codes.NAME.bin
  std::int64_t codebooks = 0;   ///< codebooks of the model; 0: any
  std::int64_t codes_per_book = 0;
  std::int64_t vocab_size = 0;   ///< of the model; 0: any
  std::uint64_t form_hash = 0;   ///< DialogueForm::hash() of the checkpoint; 0: any
  std::uint64_t codec_hash = 0;  ///< of the checkpoint; 0: any
};

class DialogueBatches {
 public:
  /// Collective as SpeechDataset::open(), and over config.user.peers. Every rank reads forms and
  /// codes itself. Throws on all ranks: DataError (files, folders of different units or codecs,
  /// codes of other numbers than the model's, a codec whose frame is not 80 ms), DeckError: an
  /// encoder whose frame is not the codec's.
  static std::unique_ptr<DialogueBatches> open(Communicator& comm, const DialogueConfig& config);
  ~DialogueBatches();
  DialogueBatches(const DialogueBatches&) = delete;
  DialogueBatches& operator=(const DialogueBatches&) = delete;

  /// For order, cursors, shapes (labels are frames) and names of sets.
  SpeechDataset& user();
  const SpeechDataset& user() const;
  const DialogueForm& form() const;
  const CodecDescription& codec() const;
  DialogueMeaning meaning() const;
  std::string to_string() const;

  /// Collective as those of SpeechDataset; hold until the next call of either.
  const DialogueBatch& next();
  const DialogueBatch& eval_batch(int set, std::int64_t call);
  /// Local. Who says what when in a row of an eval batch. Throws DataError.
  std::vector<DialogueTurn> eval_turns(int set, const SpeechRow& row) const;

  /// Local. The number of a row of an eval batch among the dialogues of its set, in the order of
  /// the folders.
  std::int64_t eval_place(int set, const SpeechRow& row) const;

  /// Targets of a dialogue of so many frames.
  std::int64_t text_targets(std::int64_t frames) const { return frames > 0 ? frames - 1 : 0; }
  std::int64_t code_targets(std::int64_t frames) const {
    return text_targets(frames) * codec().codebooks;
  }

 private:
  struct State;
  explicit DialogueBatches(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace choir
