#pragma once
// The deck of a model that was imported.
#include <string>

#include "choir/models/gpt/gpt_config.hpp"

namespace choir {

/// As parse_deck() reads it: the model, a batch of one sequence a rank, and a rate for fine-tuning.
/// The data are left to the user: data.train names a file that is not there.
std::string foreign_deck(const GptConfig& config, const std::string& run_directory);

}  // namespace choir
