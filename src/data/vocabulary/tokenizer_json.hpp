#pragma once
// A tokenizer.json of Hugging Face's library taken apart: a byte-level BPE with everything around
// it. What it says and this reader does not know is refused by name, for a tokenizer that ignores a
// line gives other ids than the one a model was trained with.
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
  /// By id, added tokens included; "" where the file has none.
  std::vector<std::string> bytes;
  std::array<std::int32_t, 256> byte_ids;
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;
  std::vector<AddedToken> added;
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  std::vector<std::int32_t> prefix, suffix;  ///< what the template puts around a text
};

/// Throws DataError with `source`, the place in the file and what is wrong with it.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& source);

}  // namespace choir
