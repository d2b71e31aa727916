#pragma once
// The contents of a tokenizer.json of Hugging Face's library: a BPE over bytes, or over characters
// with U+2581 for blanks (Metaspace), with its normaliser, pre-tokenizers and template, and its
// added tokens (control tokens such as <|endoftext|>, and words added to a finished vocabulary),
// which are found in a text before it is split into pieces.
// Unknown members are refused by name, because a tokenizer that ignores one gives other ids than
// those with which the model was trained.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/data/vocabulary/byte_level_bpe.hpp"
#include "src/data/vocabulary/pre_tokenizers.hpp"

namespace choir {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< matches only without a \w on either side
  bool lstrip = false;       ///< includes the blanks in front
  bool rstrip = false;       ///< includes the blanks behind
  bool normalized = false;   ///< its normal form is searched in the normalised text
  bool special = false;      ///< controls the model; decoding may omit it
};

/// Finds tokens in texts. Its memory is little more than the tokens themselves, however many and
/// long they are.
class AddedTokenFinder {
 public:
  struct Match {
    std::int32_t id = 0;
    std::size_t begin = 0, end = 0;  ///< including the blanks around the token
    std::size_t from = 0;            ///< beginning of the token itself
  };

  AddedTokenFinder() = default;
  /// Searches the tokens by their `content`. Of two tokens with equal content the later one counts.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }
  std::size_t longest() const { return longest_; }

  /// All matches in `text`, which must be UTF-8, without overlaps: from left to right, the longest
  /// token at each position. Unless `special` is set, special tokens are text like any other.
  std::vector<Match> find(std::string_view text, bool special) const;

 private:
  /// The longest token that matches at `at`, or nullptr.
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;  ///< sorted by content
  /// index of the first token that begins with this byte
  std::array<std::uint32_t, 257> first_byte_{};
  std::size_t longest_ = 0;
};

/// The stretches of text between added tokens in front of which a blank is added, unless they begin
/// with one: none, that at the start of the text, or all.
enum class AddedBlank { never, first, always };

struct TokenizerJson {
  /// Bytes by id, including added tokens; "" for an id without an entry.
  std::vector<std::string> bytes;
  std::array<std::int32_t, 256> byte_ids;      ///< of a vocabulary over bytes
  std::optional<CharacterSymbols> characters;  ///< of one over characters
  AddedBlank added_blank = AddedBlank::never;
  bool drops_first_blank = false;  ///< decoding omits the blanks of the first token
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;
  std::vector<AddedToken> added;
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  std::vector<std::int32_t> prefix, suffix;  ///< ids that the template puts around a text
};

/// Throws DataError with `source`, the position in the file and the fault.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& source);

/// True for vocab.json of the tokenizers of transformers that are in several files: an object of
/// entries and their ids. It reads the first entry only.
bool is_list_of_entries(std::string_view json);
/// The tokenizer.json with the ids of such files: merges.txt beside `vocab`, and, if they are
/// there, added_tokens.json, special_tokens_map.json, tokenizer_config.json and config.json. Local.
/// Throws DataError, also for a class of tokenizers that is unknown here.
std::string tokenizer_json_of_vocab_and_merges(const std::string& vocab);

/// The file without its entries and added tokens from id `ids` on, and without the merges that need
/// one of them. `text` is a valid tokenizer.json.
std::string tokenizer_json_within(const std::string& text, std::int64_t ids);

}  // namespace choir
