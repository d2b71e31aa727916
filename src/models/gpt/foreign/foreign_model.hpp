#pragma once
// A file or folder of weights of another program, with the model that it says it is.
#include <memory>
#include <string>

#include "choir/store/tensor_reader.hpp"
#include "src/models/gpt/foreign/hugging_face.hpp"

namespace choir {

struct ForeignFile {
  std::unique_ptr<TensorReader> weights;
  ForeignModel model;
  /// The folder that has the tokenizer, if any; "" when there can be none.
  std::string folder;
};

/// Local. `path` as open_weights(). The model is described by the file itself (GGUF, llm.c,
/// nanoGPT's ckpt.pt) or by config.json beside it (nanoGPT's own description: model_args.json).
/// StorageError, and DeckError for models that cannot be imported.
ForeignFile open_foreign(const std::string& path, bool allow_unknown);

/// nanoGPT's model_args as JSON, and a model from them.
std::string nanogpt_model_args(const GptConfig& config);
/// DeckError that names the keys that nanoGPT does not have.
void require_nanogpt(const GptConfig& config);
/// The same for llm.c.
void require_llmc(const GptConfig& config);

inline constexpr const char* kModelArgs = "model_args.json";

}  // namespace choir
