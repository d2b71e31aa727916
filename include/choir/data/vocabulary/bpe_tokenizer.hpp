#pragma once
// Text to ids and back as a tokenizer.json says: added tokens are cut out, the rest is normalised
// and cut into pieces, and every piece becomes ids by byte-pair encoding. The file is kept as it
// was read, so that what is exported is what was imported.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/data/vocabulary/byte_level_bpe.hpp"

namespace choir {

/// How a text becomes ids.
struct BpeEncoding {
  bool special = true;  ///< special tokens in the text are found; else they are text like any other
  bool around = false;  ///< with what the file's template puts in front and behind (<s>, </s>)
};

/// Immutable and shared: copies are cheap, and threads may use one together, each with its own
/// cache.
class BpeTokenizer {
 public:
  /// Local. Throws DataError for a file that cannot be read, that contradicts itself or that asks
  /// for something unknown.
  static BpeTokenizer load(const std::string& path);
  static BpeTokenizer from_json(std::string json, const std::string& source);
  /// The text of the file, to the byte.
  const std::string& json() const;

  /// One more than the largest id; not every id below need have an entry.
  int vocab_size() const;
  /// FNV-1a, 64 bits, over the ids and their bytes; never 0.
  std::uint64_t hash() const;
  bool has(std::int32_t id) const;
  /// Throws DataError for an id without entry.
  std::string_view bytes_of(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  /// The id of an added token, such as "<|endoftext|>".
  std::optional<std::int32_t> added_token(std::string_view content) const;
  /// What the file's template puts around a text.
  std::span<const std::int32_t> prefix() const;
  std::span<const std::int32_t> suffix() const;

  /// Throws DataError where `text` is not UTF-8, with the position (plus `base`, the byte offset of
  /// `text` in `source`).
  std::vector<std::int32_t> encode(std::string_view text, PieceCache& cache,
                                   const BpeEncoding& how = {},
                                   std::string_view source = "the text",
                                   std::int64_t base = 0) const;
  /// Appends to `ids` and returns the number of bytes used. When `more_follows`, that is fewer than
  /// all of them: only what has the same ids whatever follows, and the rest is to be given again in
  /// front of more (0 where a text has no certain end yet). Nothing is put around the text.
  std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                          std::int64_t base, PieceCache& cache, std::vector<std::int32_t>& ids,
                          bool special = true) const;
  /// The bytes of all ids; Utf8Stream makes whole characters of them.
  std::string decode(std::span<const std::int32_t> ids, bool with_special = true) const;

 private:
  struct Tables;
  class Run;
  explicit BpeTokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  std::shared_ptr<const Tables> tables_;
};

}  // namespace choir
