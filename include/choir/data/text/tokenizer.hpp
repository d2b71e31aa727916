#pragma once
// Text to token ids and back: `char` (one id per Unicode code point of a corpus, in code point
// order) and `byte` (256 ids). The vocabulary is a JSON file beside the tokens, and its hash is in
// every token file, so that a model never meets ids of another vocabulary.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

enum class TokenizerKind { character, byte };
/// Throws DeckError for a name that is neither "char" nor "byte".
TokenizerKind tokenizer_kind_of(std::string_view name);
std::string_view name_of(TokenizerKind kind);

class Tokenizer {
 public:
  static Tokenizer bytes();
  /// `code_points` in any order, duplicates allowed.
  static Tokenizer characters(std::vector<char32_t> code_points);
  /// Local. Reads vocab.json. Throws DataError when it is missing, malformed, or its hash does not
  /// fit its entries.
  static Tokenizer load(const std::string& path);
  static Tokenizer from_json(const std::string& json, const std::string& source);
  std::string to_json() const;
  /// Throws StorageError.
  void save(const std::string& path) const;

  TokenizerKind kind() const { return kind_; }
  int vocab_size() const { return static_cast<int>(entries_.size()); }
  /// FNV-1a, 64 bits, over the kind and the entries; never 0.
  std::uint64_t hash() const { return hash_; }
  /// Sorted code points, or 0..255.
  const std::vector<char32_t>& entries() const { return entries_; }

  /// Throws DataError naming an unknown character, or bytes that are not UTF-8, with the position
  /// in `text` (plus `base`, the byte offset of `text` in `source`).
  std::vector<std::int32_t> encode(std::string_view text, std::string_view source = "the text",
                                   std::int64_t base = 0) const;
  /// Appends to `ids` and returns the number of bytes used: all, or fewer by the at most three
  /// bytes of a sequence that `text` cuts off when `more_follows`.
  std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                          std::int64_t base, std::vector<std::int32_t>& ids) const;
  /// Throws DataError for an id outside the vocabulary. Bytes that are no UTF-8 come out as they
  /// are.
  std::string decode(std::span<const std::int32_t> ids) const;

 private:
  Tokenizer(TokenizerKind kind, std::vector<char32_t> entries);
  std::int32_t id_of(char32_t code_point) const;

  TokenizerKind kind_;
  std::vector<char32_t> entries_;
  std::vector<std::int32_t> ids_;  // by code point, -1 unknown
  std::uint64_t hash_ = 0;
};

/// The error for bytes that are not UTF-8.
[[noreturn]] void refuse_utf8(std::string_view source, std::int64_t byte);

}  // namespace choir
