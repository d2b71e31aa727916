#pragma once
// The interface behind Vocabulary. One class implements bytes and characters, one SentencePiece
// models, one a tokenizer.json. In a build without SentencePiece its functions throw an error that
// names the package.
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {

class VocabularyModel {
 public:
  virtual ~VocabularyModel() = default;
  virtual VocabularyKind kind() const = 0;
  virtual int size() const = 0;
  virtual std::uint64_t hash() const = 0;
  virtual std::string to_json() const = 0;
  virtual std::string sentencepiece_model() const { return ""; }
  virtual std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                                  std::int64_t base, std::vector<std::int32_t>& ids) const = 0;
  virtual Vocabulary::Encoded try_encode(std::string_view text) const = 0;
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  virtual std::string piece(std::int32_t id) const = 0;
  virtual bool has(std::int32_t id) const { return id >= 0 && id < size(); }
  virtual std::vector<std::int32_t> text_start() const { return {}; }
  virtual std::optional<std::int32_t> end_of_text() const { return std::nullopt; }
  virtual std::optional<std::int32_t> control(std::string_view) const { return std::nullopt; }
};
using SharedVocabularyModel = std::shared_ptr<const VocabularyModel>;

SharedVocabularyModel byte_vocabulary();
SharedVocabularyModel character_vocabulary(std::vector<char32_t> code_points);
/// Reads the JSON that to_json() of either kind wrote. Throws DataError if it is malformed or if
/// its hash does not match its entries.
SharedVocabularyModel character_vocabulary_from_json(const std::string& json,
                                                     const std::string& source);

/// `bytes`: a serialised ModelProto, as in SentencePiece's .model files.
SharedVocabularyModel open_sentencepiece(std::string bytes, const std::string& source);
/// Reads the JSON that its to_json() wrote:
/// {"kind":"sentencepiece","size":N,"hash":"...","model":"base64"}.
SharedVocabularyModel sentencepiece_from_json(const nlohmann::json& json,
                                              const std::string& source);
SharedVocabularyModel train_sentencepiece(const VocabularyTraining& training,
                                          const std::vector<std::string>& sentences);

/// True for a tokenizer.json of Hugging Face's library, false for our own forms, which begin with
/// their kind. It does not parse the text.
bool is_tokenizer_json(std::string_view json);
/// Throws DataError for the same faults as BpeTokenizer::from_json.
SharedVocabularyModel bpe_vocabulary(std::string tokenizer_json, const std::string& source);

/// Two hashes exist for a tokenizer.json: that of its whole text, which token files store, and that
/// of its tokens and their ids, which prepared conversations store. This is the latter; for other
/// kinds, Vocabulary::hash().
std::uint64_t hash_of_tokens(const Vocabulary& vocabulary);
/// True if `hash` is one of the two.
bool has_hash(const Vocabulary& vocabulary, std::uint64_t hash);
/// True if every id has the same token in both.
bool same_tokens(const Vocabulary& a, const Vocabulary& b);

/// Base64 (RFC 4648, with padding), for bytes inside JSON.
std::string to_base64(std::string_view bytes);
/// False for text that is not base64.
bool from_base64(std::string_view text, std::string& bytes);

}  // namespace choir
