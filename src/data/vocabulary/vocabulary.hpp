#pragma once
// A vocabulary converts text to ids and back. The ids are single bytes, the characters of a text,
// the pieces of a SentencePiece model, or the tokens of a tokenizer.json. The hash of a vocabulary
// is stored in every file of ids, so that a model is never fed ids of another vocabulary. A CTC
// model adds its blank as id size().
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace choir {

enum class VocabularyKind { character, byte, sentencepiece, bpe };
/// "char", "byte", "sentencepiece" or "bpe", as in files and messages.
std::string_view name_of(VocabularyKind kind);
/// The kind of a vocabulary that needs neither training nor a file. Throws DeckError for a name
/// that is neither "char" nor "byte".
VocabularyKind vocabulary_kind_of(std::string_view name);

class VocabularyModel;  // src/data/vocabulary/vocabulary_model.hpp

/// Immutable; copies share their memory, and several threads may use one.
class Vocabulary {
 public:
  static Vocabulary bytes();  ///< 256 ids
  /// One id for each of `code_points` (any order, duplicates allowed), in sorted order.
  static Vocabulary characters(std::vector<char32_t> code_points);
  /// Local. Reads a file that save() wrote, or the binary .model of SentencePiece. Throws DataError
  /// if it is missing, damaged or of another kind, or if this build lacks SentencePiece.
  static Vocabulary load(const std::string& path);
  /// Local. Reads vocab.json or tokenizer.json of `choir prepare text`. Throws DataError.
  static Vocabulary load_beside_tokens(const std::string& path);
  /// Accepts a tokenizer.json, too. `source` names the origin of the JSON in messages. Throws
  /// DataError.
  static Vocabulary from_json(const std::string& json, const std::string& source);
  /// The complete vocabulary for files and checkpoints. A tokenizer.json is returned byte for byte
  /// as it was read.
  std::string to_json() const;
  /// Writes the JSON. If the name ends in ".model", a SentencePiece model is written in its own
  /// format instead. Throws StorageError.
  void save(const std::string& path) const;

  /// The vocabulary without its entries from id `ids` on, for a model whose embedding has fewer
  /// rows than its tokenizer has entries. Throws DataError if the rest is no vocabulary.
  Vocabulary within(std::int64_t ids) const;

  VocabularyKind kind() const;
  int size() const;
  /// FNV-1a, 64 bits, over the kind and the entries, or over the SentencePiece model or the
  /// tokenizer.json; never 0.
  std::uint64_t hash() const;

  /// Throws DataError that names the characters outside the vocabulary or the bytes that are not
  /// UTF-8, with their position in `text` (plus `base`, the byte offset of `text` in `source`).
  std::vector<std::int32_t> encode(std::string_view text, std::string_view source = "the text",
                                   std::int64_t base = 0) const;
  /// The same for a text that is read in parts (not for SentencePiece). Appends to `ids` and
  /// returns the number of bytes used: all, or with `more_follows` those whose ids are certain.
  std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                          std::int64_t base, std::vector<std::int32_t>& ids) const;
  struct Encoded {
    std::vector<std::int32_t> ids;
    std::string unknown;  ///< text outside the vocabulary, for messages; "" if there is none
  };
  /// Does not throw for text that cannot be encoded, including bytes that are not UTF-8.
  Encoded try_encode(std::string_view text) const;

  /// Throws DataError for an id outside the vocabulary. The result may contain bytes that are not
  /// UTF-8.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// The text of one id. decode() is the concatenation of these pieces without the space that
  /// SentencePiece writes before the first word. A piece that begins with a space begins a word.
  std::string piece(std::int32_t id) const;
  /// False for an id that is outside the vocabulary or has no token.
  bool has(std::int32_t id) const;
  /// The ids that a tokenizer.json puts in front of a text; empty for other kinds.
  std::vector<std::int32_t> text_start() const;
  /// The token that ends a text, if the vocabulary has one.
  std::optional<std::int32_t> end_of_text() const;
  /// A control piece of SentencePiece, such as "[INST]", which is never found in a text.
  std::optional<std::int32_t> control(std::string_view piece) const;

 private:
  explicit Vocabulary(std::shared_ptr<const VocabularyModel> model) : model_(std::move(model)) {}
  friend Vocabulary train_vocabulary(const struct VocabularyTraining&,
                                     const std::vector<std::string>&);

  std::shared_ptr<const VocabularyModel> model_;
};

struct VocabularyTraining {
  std::string type = "char";  ///< char, bpe or unigram
  /// bpe and unigram: the exact number of pieces, including <unk>. char: the maximum, the most
  /// frequent characters are kept; 0: all characters.
  int vocab_size = 0;
};

/// Local. Trains a vocabulary on `sentences`. Equal sentences give equal bytes (one thread, fixed
/// seed). Throws DeckError (type, size, a size that the text does not fill, SentencePiece absent
/// from this build) and DataError (no text, not UTF-8).
Vocabulary train_vocabulary(const VocabularyTraining& training,
                            const std::vector<std::string>& sentences);

}  // namespace choir
