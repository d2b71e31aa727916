#pragma once
// Conversion of the tokenizers of GGUF files to vocabularies, and of SentencePiece models to GGUF.
#include <cstdint>
#include <string>

#include "choir/data/vocabulary/vocabulary.hpp"
#include "choir/store/gguf/gguf.hpp"

namespace choir {

/// Returns text for Vocabulary::from_json(): a tokenizer.json for kind "gpt2", a SentencePiece
/// model for kind "llama". DataError with `source` for other kinds, for unknown rules of splitting
/// text, and for tables that contradict one another.
std::string vocabulary_of_gguf(const GgufMetadata& metadata, const std::string& source);

/// Returns llama.cpp's metadata, without the tokens that begin and end a text. DeckError for models
/// that do not use byte pairs.
GgufMetadata gguf_of_sentencepiece(const Vocabulary& vocabulary, std::int64_t vocab_size);

}  // namespace choir
