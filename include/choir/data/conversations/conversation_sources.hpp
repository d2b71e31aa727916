#pragma once
// What a deck says about where conversations come from. Pure functions.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "choir/data/speech/speech_mix.hpp"

namespace choir {

/// data.input_cfg, a list or {"inputs": LIST, "temperature": [OF EACH LEVEL]}, or the folders of
/// data.train where it is "". `temperature`: of a list. DeckError for what is neither.
SpeechMix conversation_mix(const std::string& input_cfg, const std::vector<std::string>& train,
                           double temperature = 1);

/// Validation sets as {name, folders}: those of data.val, called as their folders, then those of
/// data.validation, "FOLDER[,FOLDER...]" by name. DeckError for two of one name.
using NamedFolders = std::vector<std::pair<std::string, std::vector<std::string>>>;
NamedFolders named_conversation_sets(const std::vector<std::string>& val,
                                     const std::map<std::string, std::string>& validation);

}  // namespace choir
