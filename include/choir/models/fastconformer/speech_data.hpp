#pragma once
// The opened speech of a deck: the data set, and the vocabulary of its labels.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/data/speech/speech_dataset.hpp"
#include "choir/data/vocabulary/vocabulary.hpp"
#include "choir/deck/deck.hpp"
#include "choir/models/batch.hpp"
#include "choir/models/fastconformer/speech_settings.hpp"

namespace choir {

/// An opened data set for training.
struct SpeechData {
  std::unique_ptr<SpeechDataset> set;
  Vocabulary vocabulary;
};
/// Collective over the mesh; the ranks of the data axis read, and pass their batch to the ranks
/// that share it. The vocabulary is that of tokenizer.NAME.json beside the labels. `training`:
/// opens data.train as well. `tokenizer_hash`: that of the checkpoint, 0 for any. Throws on all
/// ranks: DataError (files, rates, vocabularies, bad utterances), DeckError.
SpeechData open_speech(const Deck& deck, const SpeechRequest& request, Mesh& mesh, bool training,
                       std::uint64_t tokenizer_hash = 0);
/// The same for models that do not read transcripts: labels may be missing (data.labels = "").
std::unique_ptr<SpeechDataset> open_recordings(const Deck& deck, const SpeechRequest& request,
                                               Mesh& mesh, bool training);
/// Opens the data with the request of a FastConformer.
inline SpeechData open_speech(const Deck& deck, Mesh& mesh, bool training,
                              std::uint64_t tokenizer_hash = 0) {
  return open_speech(deck, speech_request(deck), mesh, training, tokenizer_hash);
}

/// A batch in the engine's form: the same host memory.
ModelBatch speech_batch(const SpeechBatch& batch);
/// The shapes for which no other is at least as large in all three extents.
std::vector<BatchShape> largest_shapes(const std::vector<SpeechShape>& shapes);

// Helpers of the training data of all speech families.

/// Local. Rank 0 warns that there is no validation.
void warn_without_validation(const Mesh& mesh, Logger& log);
/// Counts of all sources and sets, ", train 9 utterances of 0.1 hours, validation ...", for
/// TrainingData::contents(), because hours of audio are too much to read for it. `what`:
/// "utterances".
std::string counts_of(const SpeechDataset& set, std::string_view what);
/// Collective over the mesh. The warnings of the readers of all ranks.
std::vector<std::string> gathered_warnings(SpeechDataset& set, Mesh& mesh);

}  // namespace choir
