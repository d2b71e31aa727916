#pragma once
// What speech a deck asks for: from its words to the options of a data set. Pure but for the file
// that data.input_cfg may name.
#include <cstdint>
#include <string>

#include "choir/data/speech/speech_dataset.hpp"
#include "choir/train/deck/deck.hpp"

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

}  // namespace choir
