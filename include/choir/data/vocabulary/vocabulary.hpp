#pragma once
// Text to ids and back: single bytes, the characters of a text, the pieces of a SentencePiece
// model, or the tokens of a tokenizer.json. The hash of a vocabulary is in every file of ids, so
// that a model never meets those of another one. The blank of CTC is added by a model as id size().
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
/// What needs no training and no file. Throws DeckError for a name that is neither "char"
/// nor "byte".
VocabularyKind vocabulary_kind_of(std::string_view name);

class VocabularyModel;  // src/data/vocabulary/vocabulary_model.hpp

/// Immutable; copies share their memory, and several threads may use one.
class Vocabulary {
 public:
  static Vocabulary bytes();  ///< 256 ids
  /// One id for each of `code_points` (any order, duplicates allowed), in their sorted order.
  static Vocabulary characters(std::vector<char32_t> code_points);
  /// Local. A file that save() wrote, or the binary .model of SentencePiece. Throws DataError when
  /// it is missing, damaged or of another kind, or when SentencePiece is absent from this build.
  static Vocabulary load(const std::string& path);
  /// Local. vocab.json or tokenizer.json of `choir prepare text`. Throws DataError.
  static Vocabulary load_beside_tokens(const std::string& path);
  /// A tokenizer.json, too. `source` names the origin of the JSON in messages. Throws DataError.
  static Vocabulary from_json(const std::string& json, const std::string& source);
  /// All there is to know of the vocabulary, for files and checkpoints; a tokenizer.json as it was
  /// read, to the byte.
  std::string to_json() const;
  /// Writes the JSON; under a name that ends in ".model" a SentencePiece model as its own tools
  /// read it. Throws StorageError.
  void save(const std::string& path) const;

  VocabularyKind kind() const;
  int size() const;
  /// FNV-1a, 64 bits, over the kind and the entries, or over the SentencePiece model or the
  /// tokenizer.json; never 0.
  std::uint64_t hash() const;

  /// Throws DataError naming what is outside the vocabulary or not UTF-8, with its position in
  /// `text` (plus `base`, the byte offset of `text` in `source`).
  std::vector<std::int32_t> encode(std::string_view text, std::string_view source = "the text",
                                   std::int64_t base = 0) const;
  /// The same for a text that is read in parts, not for SentencePiece. Appends to `ids` and
  /// returns the number of bytes used: all, or when `more_follows` those whose ids are certain.
  std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                          std::int64_t base, std::vector<std::int32_t>& ids) const;
  struct Encoded {
    std::vector<std::int32_t> ids;
    std::string unknown;  ///< what is outside the vocabulary, named for messages; "" when all fits
  };
  /// Does not throw for what cannot be written (bytes that are not UTF-8 among it).
  Encoded try_encode(std::string_view text) const;

  /// Throws DataError for an id outside the vocabulary. Bytes that are not UTF-8 come out as they
  /// are.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// What the id adds to a text: decode() is the pieces one after the other, without the space
  /// that SentencePiece writes before the first word. A piece that begins with a space begins a
  /// word.
  std::string piece(std::int32_t id) const;
  /// False for an id outside the vocabulary, or that no token has.
  bool has(std::int32_t id) const;
  /// What a tokenizer.json puts in front of a text; nothing of other kinds.
  std::vector<std::int32_t> text_start() const;
  /// The token that ends a text, where the vocabulary has one.
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
  /// For bpe and unigram exactly so many pieces, <unk> among them; for char at most so many, the
  /// commonest, or 0 for all there are.
  int vocab_size = 0;
};

/// Local. A vocabulary made of `sentences`; the same bytes for the same sentences (one thread,
/// fixed seed). Throws DeckError (type, size, a size that the text does not fill, SentencePiece
/// absent from this build) and DataError (no text, not UTF-8).
Vocabulary train_vocabulary(const VocabularyTraining& training,
                            const std::vector<std::string>& sentences);

}  // namespace choir
