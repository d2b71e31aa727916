#pragma once
// The data sources that a deck names, for any model: values of data.input_cfg, data.validation and
// data.shard_seed.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/data/sampling/mix.hpp"
#include "src/data/speech/speech_dataset.hpp"

namespace choir {

/// Local. Returns data.input_cfg itself if it is JSON, else the contents of the file that it names;
/// "" if it is empty. Throws DeckError for an unreadable file and for YAML.
std::string input_cfg_text(const std::string& input_cfg);

/// Pure. Returns the blend of data.input_cfg, whose contents (see input_cfg_text()) are `text`, or
/// the folders of data.train if there is none. `temperature` applies to levels without one of their
/// own. Throws DeckError.
SpeechMix blend_of(const std::string& input_cfg, const std::string& text,
                   const std::vector<std::string>& train, double temperature);
/// Collective over `world`. The same, but only rank 0 reads the file. Throws on all ranks.
SpeechMix open_blend(Communicator& world, const std::string& input_cfg,
                     const std::vector<std::string>& train, double temperature);

/// Collective over `world`. Returns speech_order_seed(), equal on all ranks even for "randomized".
std::uint64_t open_order_seed(Communicator& world, const std::string& shard_seed,
                              std::uint64_t run_seed);

/// The options of a validation set that a family supports beside limit=N.
struct EvalWords {
  bool durations = false;       ///< min_duration, max_duration
  bool batch_duration = false;  ///< batch_duration
  bool tags = false;            ///< tag.NAME, and lists with tags
  bool answers = false;         ///< answers, answer_tokens, temperature, top_k, top_p
  bool dialogues = false;       ///< dialogues
  bool batches = false;         ///< batches
};

/// Parses a value of data.validation: "FOLDER[,FOLDER...] [OPTION=VALUE ...]", where limit=N is the
/// maximum number of samples, and the others are those of EvalWords. Options that are not `legal`
/// are refused with the reason. A JSON list as in data.input_cfg, but without weights, may replace
/// the folders, so that each folder has its own tags. The whole may be a JSON object with the same
/// options: {"folder": "data/a", "limit": 100, "tags": {"lang": "en"}}; its folder may be a list.
/// Throws DeckError.
SpeechEvalSet eval_set_of(const std::string& name, const std::string& text, EvalWords legal);

/// Returns the sets of data.val, named after their folders, then the sets of data.validation.
/// Throws DeckError as above, and for two sets of the same name.
std::vector<SpeechEvalSet> eval_sets_of(const std::vector<std::string>& val,
                                        const std::map<std::string, std::string>& validation,
                                        EvalWords legal);

}  // namespace choir
