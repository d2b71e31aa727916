#pragma once
// The vocabulary that nanoGPT's scripts for characters write beside train.bin: meta.pkl.
#include <string>

#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {

/// Local. Reads {"vocab_size", "itos": {id: character}, "stoi"} as a vocabulary of characters.
/// Throws StorageError for a file that is no such pickle, and DataError if its ids are not the
/// characters in sorted order, which nanoGPT's own scripts give them.
Vocabulary nanogpt_vocabulary(const std::string& path);

/// Local. The vocabulary beside token files: vocab.json, a tokenizer.json, or nanoGPT's meta.pkl.
/// Throws DataError or StorageError.
Vocabulary vocabulary_beside_tokens(const std::string& path);

}  // namespace choir
