#pragma once
// The deck of a model that was imported.
#include <string>

#include "choir/models/gpt/gpt_config.hpp"

namespace choir {

/// A deck for parse_deck(): the model, a batch of one sequence per rank, and a learning rate for
/// fine-tuning. The user adds the data: data.train names a file that does not exist.
std::string foreign_deck(const GptConfig& config, const std::string& run_directory);

}  // namespace choir
