#pragma once
// Models of other programs and their descriptions: a file or folder of weights with the model that
// it describes, config.json of transformers in both directions, and the models of nanoGPT and
// llm.c.

#include <memory>
#include <string>
#include <vector>

#include "src/models/gpt/foreign/tensor_map.hpp"
#include "src/store/tensor_file.hpp"

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
/// The model_type of such a model in transformers.
std::string_view hf_type_of(const GptConfig& config);
/// The longest sequence that the files of other programs name: block_size, or for longrope the
/// length from which its factor of queries and keys follows, if that is longer.
std::int64_t described_length(const GptConfig& config);
/// True if a model has none of the factors, soft caps and further norms of Gemma and Granite.
bool has_plain_blocks(const GptConfig& config);
/// Writes config.json of transformers 4, which later versions read as well. `dtype`: "float32".
/// `tokens`: ids of special tokens (bos_token_id ...) of an earlier config.json, as JSON, or "".
std::string hf_config(const GptConfig& config, const std::string& dtype, const std::string& tokens);
/// generation_config.json with the same ids.
std::string hf_generation_config(const std::string& tokens);

struct ForeignFile {
  std::unique_ptr<TensorReader> weights;
  ForeignModel model;
  /// The folder of the tokenizer, if any; "" if there cannot be one.
  std::string folder;
};

/// Local. `path` as for open_weights(). The model is described by the file itself (GGUF, llm.c,
/// nanoGPT's ckpt.pt) or by config.json beside it (nanoGPT's own description: model_args.json).
/// StorageError, and DeckError for models that cannot be imported.
ForeignFile open_foreign(const std::string& path, bool allow_unknown);

/// nanoGPT's model_args as JSON.
std::string nanogpt_model_args(const GptConfig& config);
/// DeckError that names the keys that nanoGPT does not support.
void require_nanogpt(const GptConfig& config);
/// The same for llm.c.
void require_llmc(const GptConfig& config);

inline constexpr const char* kModelArgs = "model_args.json";

}  // namespace choir
