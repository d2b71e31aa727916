#pragma once
// The tokenizers of GGUF files as vocabularies, and SentencePiece models as llama.cpp stores them.
#include <cstdint>
#include <string>

#include "choir/data/vocabulary/vocabulary.hpp"
#include "choir/store/gguf/gguf.hpp"

namespace choir {

/// What Vocabulary::from_json() reads: a tokenizer.json of kind "gpt2", a SentencePiece model of
/// kind "llama". DataError with `source` for other kinds, for ways of cutting text that are unknown
/// here, and for tables that contradict one another.
std::string vocabulary_of_gguf(const GgufMetadata& metadata, const std::string& source);

/// What llama.cpp reads, without the tokens that begin and end a text. DeckError for models that
/// are not of byte pairs.
GgufMetadata gguf_of_sentencepiece(const Vocabulary& vocabulary, std::int64_t vocab_size);

}  // namespace choir
