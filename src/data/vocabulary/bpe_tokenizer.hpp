#pragma once
// Converts text to ids and back as a tokenizer.json prescribes: added tokens are found first, the
// text between them is normalised and split into pieces, and byte-pair encoding turns every piece
// into ids. The file is kept as it was read, so that an export equals the import.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/vocabulary/byte_level_bpe.hpp"

namespace choir {

/// Options of the conversion of a text to ids. Some tokenizers add a blank in front of a text; they
/// are told if it is the rest of a longer one, which they would convert at once.
struct BpeEncoding {
  bool special = true;        ///< find special tokens; else they are text like any other
  bool around = false;        ///< add the template's prefix and suffix (<s>, </s>)
  bool behind_text = false;   ///< other text is in front of it
  bool behind_token = false;  ///< a control token is in front of it
};

/// Immutable; copies share the tables and are cheap. Several threads may use one tokenizer, each
/// with its own cache.
class BpeTokenizer {
 public:
  /// Local. Throws DataError for a file that cannot be read, that contradicts itself or that asks
  /// for something unknown.
  static BpeTokenizer load(const std::string& path);
  static BpeTokenizer from_json(std::string json, const std::string& source);
  /// The text of the file, to the byte.
  const std::string& json() const;

  /// One more than the largest id. Smaller ids may have no entry.
  int vocab_size() const;
  /// FNV-1a, 64 bits, over the ids and their bytes; never 0.
  std::uint64_t hash() const;
  bool has(std::int32_t id) const;
  /// Throws DataError for an id without entry.
  std::string_view bytes_of(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  /// The id of an added token, such as "<|endoftext|>".
  std::optional<std::int32_t> added_token(std::string_view content) const;
  /// The contents of all added tokens.
  std::vector<std::string> added_tokens() const;
  /// The ids that the file's template puts in front of a text and behind it.
  std::span<const std::int32_t> prefix() const;
  std::span<const std::int32_t> suffix() const;

  /// Throws DataError where `text` is not UTF-8, with the position (plus `base`, the byte offset of
  /// `text` in `source`).
  std::vector<std::int32_t> encode(std::string_view text, PieceCache& cache,
                                   const BpeEncoding& how = {},
                                   std::string_view source = "the text",
                                   std::int64_t base = 0) const;
  /// Appends to `ids` and returns the number of bytes used. With `more_follows` only the bytes
  /// whose ids do not depend on the following text are used (0 if there are none yet); the caller
  /// gives the others again in front of the next text. Prefix and suffix of the template are not
  /// added, whatever `how` says.
  std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                          std::int64_t base, PieceCache& cache, std::vector<std::int32_t>& ids,
                          const BpeEncoding& how = {}) const;
  /// The bytes of all ids. A character may be incomplete at the end; Utf8Stream joins such parts.
  std::string decode(std::span<const std::int32_t> ids, bool with_special = true) const;

 private:
  struct Tables;
  class Run;
  explicit BpeTokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  std::shared_ptr<const Tables> tables_;
};

}  // namespace choir
