#pragma once
// The tokenizer of an export, its special tokens and its settings: those of the imported model that
// the run began with, changed by what the run was trained on. Local.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/gpt/foreign/tokenizer_settings.hpp"

namespace choir {

struct TokenizerSource {
  std::string folder;      ///< RUN/tokenizer, which may be missing
  std::string vocabulary;  ///< TrainMeta::vocabulary
  bool trained = false;    ///< false: the checkpoint is an import as it was
  std::int64_t model_ids = 0;
};

struct ExportedTokenizer {
  std::string folder;  ///< files to copy; "" if there are none
  std::optional<Vocabulary> vocabulary;
  TokenizerSettings settings;
  /// Tokens of the chat template behind those of the vocabulary.
  std::vector<SpecialToken> added;
  /// Lines for people: what ends a turn, and what is left out.
  std::vector<std::string> notes;
};

/// A run that was trained on conversations ends generation with the token that ended its turns, and
/// has their template. Throws DataError for a damaged vocabulary or damaged files.
ExportedTokenizer exported_tokenizer(const TokenizerSource& source);

/// All metadata of the tokenizer in a GGUF file. Throws DeckError for tokenizers that llama.cpp
/// does not have.
GgufMetadata gguf_of(const ExportedTokenizer& tokenizer, std::int64_t vocab_size);

struct WrittenFiles {
  /// Files of the settings that are written elsewhere: config.json of a model.
  std::vector<std::string> except;
};
/// Writes the files of transformers into an existing folder, and returns notes on what they cannot
/// hold. Throws StorageError.
std::vector<std::string> write_tokenizer(const ExportedTokenizer& tokenizer,
                                         const std::string& folder, const WrittenFiles& files);

}  // namespace choir
