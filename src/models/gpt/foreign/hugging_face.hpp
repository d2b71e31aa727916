#pragma once
// Conversion between config.json of transformers and the configuration of a GPT, in both
// directions.
#include <string>
#include <vector>

#include "src/models/gpt/foreign/tensor_map.hpp"

namespace choir {

/// A model of another program.
struct ForeignModel {
  Dialect dialect = Dialect::hf_llama;
  GptConfig config;
};

/// Reads the text of config.json of transformers 4 or 5. DeckError that lists every key whose value
/// is unsupported or unknown, by its name.
ForeignModel model_from_hf(const std::string& text, const std::string& source, bool allow_unknown);

/// The dialect that can express the model. The DeckError for other models names the keys that
/// prevent it.
Dialect hf_dialect_of(const GptConfig& config);
/// Writes config.json of transformers 4, which later versions read as well. `dtype`: "float32".
/// `tokens`: ids of special tokens (bos_token_id ...) of an earlier config.json, as JSON, or "".
std::string hf_config(const GptConfig& config, const std::string& dtype, const std::string& tokens);
/// generation_config.json with the same ids.
std::string hf_generation_config(const std::string& tokens);

}  // namespace choir
