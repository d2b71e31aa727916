#pragma once
// What a deck says of where samples come from, whatever the model: data.input_cfg, data.validation
// and data.shard_seed as values.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/data/speech/speech_dataset.hpp"
#include "choir/data/speech/speech_mix.hpp"

namespace choir {

/// Local. data.input_cfg itself where it is JSON, else what the file that it names holds; "" where
/// it is empty. DeckError for a file that cannot be read, or is YAML.
std::string input_cfg_text(const std::string& input_cfg);

/// Pure. The blend of data.input_cfg, of which `text` is input_cfg_text(), or else the folders of
/// data.train. `temperature`: of levels that have none of their own. Throws DeckError.
SpeechMix blend_of(const std::string& input_cfg, const std::string& text,
                   const std::vector<std::string>& train, double temperature);
/// Collective over `world`: the same, and rank 0 alone reads the file. Throws on all ranks.
SpeechMix open_blend(Communicator& world, const std::string& input_cfg,
                     const std::vector<std::string>& train, double temperature);

/// Collective over `world`: speech_order_seed(), the same on all ranks also for "randomized".
std::uint64_t open_order_seed(Communicator& world, const std::string& shard_seed,
                              std::uint64_t run_seed);

/// What a validation set may say beside limit=N depends on the family.
struct EvalWords {
  bool durations = false;  ///< batch_duration, min_duration, max_duration
  bool tags = false;       ///< tag.NAME, and lists with tags
};

/// A value of data.validation: "FOLDER[,FOLDER...] [limit=N] [batch_duration=S] [min_duration=S]
/// [max_duration=S] [tag.NAME=VALUE]", as far as `legal`. In place of the folders may stand a JSON
/// list as in data.input_cfg, without weights: so each folder has tags of its own. DeckError.
SpeechEvalSet eval_set_of(const std::string& name, const std::string& text, EvalWords legal);

/// Validation sets: those of data.val, called as their folders, then those of data.validation.
/// DeckError as above, and for two of one name.
std::vector<SpeechEvalSet> eval_sets_of(const std::vector<std::string>& val,
                                        const std::map<std::string, std::string>& validation,
                                        EvalWords legal);

}  // namespace choir
