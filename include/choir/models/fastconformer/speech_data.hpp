#pragma once
// The speech a deck names, opened: the data set, and the vocabulary its labels are written in.
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

/// What training needs open.
struct SpeechData {
  std::unique_ptr<SpeechDataset> set;
  Vocabulary vocabulary;
};
/// Collective over the mesh; the ranks of the data axis read, those that share a batch with one are
/// told. The vocabulary is that of tokenizer.NAME.json beside the labels. `training`: also what
/// data.train names. `tokenizer_hash`: of the checkpoint, 0 for any. Throws on all ranks: DataError
/// (files, rates, vocabularies, bad utterances), DeckError.
SpeechData open_speech(const Deck& deck, const SpeechRequest& request, Mesh& mesh, bool training,
                       std::uint64_t tokenizer_hash = 0);
/// The same for those who do not ask what is said: there need be no labels (data.labels = "").
std::unique_ptr<SpeechDataset> open_recordings(const Deck& deck, const SpeechRequest& request,
                                               Mesh& mesh, bool training);
/// As a FastConformer asks for it.
inline SpeechData open_speech(const Deck& deck, Mesh& mesh, bool training,
                              std::uint64_t tokenizer_hash = 0) {
  return open_speech(deck, speech_request(deck), mesh, training, tokenizer_hash);
}

/// A batch as the engine takes it: the same host memory.
ModelBatch speech_batch(const SpeechBatch& batch);
/// Those of which no other is at least as large in all three.
std::vector<BatchShape> largest_shapes(const std::vector<SpeechShape>& shapes);

// What training data of all families of speech say.

/// Local. Rank 0 says that nothing validates.
void warn_without_validation(const Mesh& mesh, Logger& log);
/// Counts of all sources and sets, ", train 9 utterances of 0.1 hours, validation ...": hours of
/// audio are too much to be read for TrainingData::contents(). `what`: "utterances".
std::string counts_of(const SpeechDataset& set, std::string_view what);
/// Collective over the mesh. What the reader of each rank warns of.
std::vector<std::string> gathered_warnings(SpeechDataset& set, Mesh& mesh);

}  // namespace choir
