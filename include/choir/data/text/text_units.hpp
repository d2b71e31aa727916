#pragma once
// The units that a speech model writes text in: characters (the Tokenizer of text models, in every
// build) or the pieces of a SentencePiece model (bpe, unigram, char; own or made elsewhere). The
// blank of CTC is no unit: a model adds it as id vocab_size().
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/data/text/tokenizer.hpp"

namespace choir {

class UnitModel;  // src/data/text/text_units_model.hpp

class TextUnits {
 public:
  static TextUnits characters(Tokenizer tokenizer);
  /// Local. A file that save() wrote, vocab.json of `choir prepare text`, or the binary .model of
  /// SentencePiece. Throws DataError: missing, of another kind, damaged; SentencePiece absent from
  /// this build.
  static TextUnits load(const std::string& path);
  static TextUnits from_json(const std::string& json, const std::string& source);
  /// All there is to know of them, for files and checkpoints.
  std::string to_json() const;
  /// The JSON; under a name that ends in ".model" a SentencePiece model as its own tools read it.
  /// Throws StorageError.
  void save(const std::string& path) const;

  /// "char", "byte" or "sentencepiece".
  std::string_view kind() const;
  int vocab_size() const;  ///< without the blank
  /// FNV-1a, 64 bits, never 0; characters have the hash of their Tokenizer.
  std::uint64_t hash() const;

  struct Encoded {
    std::vector<std::int32_t> ids;
    std::string unknown;  ///< what is outside the vocabulary, named for messages; "" when all fits
  };
  /// Does not throw for what cannot be written (bytes that are not UTF-8 among it). May be called
  /// by several threads.
  Encoded encode(std::string_view text) const;
  /// Throws DataError for an id outside the vocabulary.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// What the unit adds to a text: decode() is the pieces one after the other, without the blank
  /// that SentencePiece writes before the first word. A piece that begins with a blank begins a
  /// word.
  std::string piece(std::int32_t id) const;

 private:
  explicit TextUnits(std::shared_ptr<const UnitModel> model) : model_(std::move(model)) {}
  friend TextUnits train_text_units(const struct UnitTraining&, const std::vector<std::string>&);

  std::shared_ptr<const UnitModel> model_;
};

struct UnitTraining {
  std::string type = "char";  ///< char, bpe or unigram
  /// Of bpe and unigram: exactly so many pieces, <unk> among them. Of char: at most so many, the
  /// commonest; 0 for all there are.
  int vocab_size = 0;
};

/// Local. Units made of `sentences`; the same bytes for the same sentences (one thread, fixed
/// seed). Throws DeckError (type, size, a size that the text does not fill, SentencePiece absent
/// from this build) and DataError (no text, not UTF-8).
TextUnits train_text_units(const UnitTraining& training, const std::vector<std::string>& sentences);

}  // namespace choir
