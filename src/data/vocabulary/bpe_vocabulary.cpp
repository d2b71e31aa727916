#include <mutex>

#include "choir/core/error.hpp"
#include "choir/core/text.hpp"
#include "choir/data/vocabulary/bpe_tokenizer.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"

namespace choir {
namespace {

class BpeVocabulary : public VocabularyModel {
 public:
  explicit BpeVocabulary(BpeTokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {
    const std::uint64_t h = fnv1a(tokenizer_.json());
    hash_ = h == 0 ? 1 : h;
  }
  VocabularyKind kind() const override { return VocabularyKind::bpe; }
  int size() const override { return tokenizer_.vocab_size(); }
  // The hash covers the whole file, not only its entries: other merges or splitters give other ids.
  std::uint64_t hash() const override { return hash_; }
  std::string to_json() const override { return tokenizer_.json(); }

  std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                          std::int64_t base, std::vector<std::int32_t>& ids) const override {
    const std::lock_guard lock(mutex_);
    return tokenizer_.encode_part(text, more_follows, source, base, cache_, ids);
  }
  Vocabulary::Encoded try_encode(std::string_view text) const override {
    Vocabulary::Encoded encoded;
    try {
      encode_part(text, false, "the text", 0, encoded.ids);
    } catch (const DataError& error) {
      encoded = {.ids = {}, .unknown = error.what()};
    }
    return encoded;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    return tokenizer_.decode(ids);
  }
  std::string piece(std::int32_t id) const override { return std::string(tokenizer_.bytes_of(id)); }
  bool has(std::int32_t id) const override { return tokenizer_.has(id); }

  std::vector<std::int32_t> text_start() const override {
    return {tokenizer_.prefix().begin(), tokenizer_.prefix().end()};
  }
  std::optional<std::int32_t> end_of_text() const override {
    for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
      if (const auto id = tokenizer_.added_token(name)) return id;
    return std::nullopt;
  }

 private:
  BpeTokenizer tokenizer_;
  std::uint64_t hash_;
  mutable std::mutex mutex_;  ///< guards cache_; locked once per part of a text
  mutable PieceCache cache_;
};

}  // namespace

SharedVocabularyModel bpe_vocabulary(std::string tokenizer_json, const std::string& source) {
  return std::make_shared<BpeVocabulary>(
      BpeTokenizer::from_json(std::move(tokenizer_json), source));
}

}  // namespace choir
