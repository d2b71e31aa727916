#pragma once
// The contents of a tokenizer.json of Hugging Face's library: a byte-level BPE with its normaliser,
// pre-tokenizers and template. Unknown members are refused by name, because a tokenizer that
// ignores one gives other ids than those with which the model was trained.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "choir/data/vocabulary/byte_level_bpe.hpp"
#include "choir/data/vocabulary/pre_tokenizers.hpp"
#include "src/data/vocabulary/added_tokens.hpp"

namespace choir {

struct TokenizerJson {
  /// Bytes by id, including added tokens; "" for an id without an entry.
  std::vector<std::string> bytes;
  std::array<std::int32_t, 256> byte_ids;
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;
  std::vector<AddedToken> added;
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  std::vector<std::int32_t> prefix, suffix;  ///< ids that the template puts around a text
};

/// Throws DataError with `source`, the position in the file and the fault.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& source);

}  // namespace choir
