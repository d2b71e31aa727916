#pragma once
// The speech a deck names: from its words to a data set, and the units its labels are written in.
#include <cstdint>
#include <memory>
#include <string>

#include "choir/comm/mesh.hpp"
#include "choir/data/speech_dataset.hpp"
#include "choir/data/text_units.hpp"
#include "choir/model/batch.hpp"
#include "choir/train/deck.hpp"

namespace choir {

/// A value of data.validation: "FOLDER[,FOLDER...] [limit=N] [batch_duration=S] [min_duration=S]
/// [max_duration=S] [tag.NAME=VALUE]". In place of the folders may stand a JSON list as in
/// data.input_cfg, without weights: so each folder has tags of its own. Throws DeckError.
SpeechEvalSet eval_set_of(const std::string& name, const std::string& text);
/// "SECONDS" or "SECONDS:LABELS", and a number of utterances. Throw DeckError.
SpeechBin bucket_bin_of(const std::string& word);
std::int64_t bucket_size_of(const std::string& word);

/// Local. What data.input_cfg holds, or the file that it names; "" where it is empty. DeckError for
/// a file that cannot be read.
std::string input_cfg_text(const Deck& deck);
/// Pure. `input_cfg`: its text; `attempt`: what data.shard_seed = "randomized" is a function of.
/// With nothing to train on the training part is empty. Throws DeckError.
SpeechDataConfig speech_data_config(const Deck& deck, const std::string& input_cfg,
                                    std::uint64_t attempt);

/// What training needs open.
struct SpeechData {
  std::unique_ptr<SpeechDataset> set;
  TextUnits units;
};
/// Collective over the mesh; the ranks of the data axis read, those that share a batch with one are
/// told. The units are those of tokenizer.NAME.json beside the labels. `training`: also what
/// data.train names. `tokenizer_hash`: of the checkpoint, 0 for any. Throws on all ranks: DataError
/// (files, rates, vocabularies, bad utterances), DeckError.
SpeechData open_speech(const Deck& deck, Mesh& mesh, bool training,
                       std::uint64_t tokenizer_hash = 0);

/// A batch as the engine takes it: the same host memory.
ModelBatch speech_batch(const SpeechBatch& batch);
/// Those of which no other is at least as large in all three.
std::vector<BatchShape> largest_shapes(const std::vector<SpeechShape>& shapes);

}  // namespace choir
