#pragma once
// Conversion between the metadata of GGUF and the configuration of a GPT, in both directions.
#include <string>

#include "choir/store/gguf/gguf.hpp"
#include "src/models/gpt/foreign/hugging_face.hpp"

namespace choir {

/// DeckError that lists every key whose value is unsupported or unknown, by its name.
ForeignModel model_from_gguf(const GgufReader& reader, bool allow_unknown);

/// The dialect that can express the model. The DeckError for other models names the keys that
/// prevent it.
Dialect gguf_dialect_of(const GptConfig& config);
/// All metadata except the tokenizer. `type` of the matrices: f32, f16, bf16 or q8_0.
GgufMetadata gguf_metadata(const GptConfig& config, Encoding type, const std::string& name);
/// llama.cpp's encoding of this tensor in a file of that type: norms and biases are always float,
/// and so are rows that are not whole blocks.
Encoding gguf_encoding(const TensorPart& part, Encoding type);

/// True if a GGUF file has a tokenizer, and its metadata without those of the model.
bool has_tokenizer(const GgufMetadata& metadata);
GgufMetadata tokenizer_of(const GgufMetadata& metadata);
/// The tokenizer of a vocabulary (Vocabulary::to_json()). One of characters or bytes becomes
/// SentencePiece's kind, which llama.cpp runs without merges. "": metadata of a model without a
/// tokenizer.
GgufMetadata tokenizer_of_vocabulary(const std::string& vocabulary, std::int64_t vocab_size);

}  // namespace choir
