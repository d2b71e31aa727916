#pragma once
// A file or folder of weights of another program, with the model that it describes.
#include <memory>
#include <string>

#include "choir/store/tensor_reader.hpp"
#include "src/models/gpt/foreign/hugging_face.hpp"

namespace choir {

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
