#pragma once
// Metadata of GGUF and the configuration of a GPT, in both directions.
#include <string>

#include "choir/store/gguf/gguf.hpp"
#include "src/models/gpt/foreign/hugging_face.hpp"

namespace choir {

/// DeckError that lists every key whose value is not supported or not known, by its name.
ForeignModel model_from_gguf(const GgufReader& reader, bool allow_unknown);

/// The dialect that can express the model. DeckError that names the keys that stand against it.
Dialect gguf_dialect_of(const GptConfig& config);
/// All but the tokenizer. `type` of the matrices: f32, f16, bf16 or q8_0.
GgufMetadata gguf_metadata(const GptConfig& config, Encoding type, const std::string& name);
/// As llama.cpp stores this tensor in a file of that type: norms and biases are float always, and
/// so are rows that are not whole blocks.
Encoding gguf_encoding(const TensorPart& part, Encoding type);

/// The tokenizer of a GGUF file as a GGUF file without tensors, "" where it has none.
bool has_tokenizer(const GgufMetadata& metadata);
GgufMetadata tokenizer_of(const GgufMetadata& metadata);
/// The tokenizer of a vocabulary of characters or bytes (Vocabulary::to_json()), as SentencePiece's
/// kind, which llama.cpp runs without merges. "": none, and llama.cpp is told so.
GgufMetadata tokenizer_of_vocabulary(const std::string& vocabulary, std::int64_t vocab_size);

}  // namespace choir
