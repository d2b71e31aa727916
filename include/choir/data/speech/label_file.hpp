#pragma once
// Token ids of the texts of a folder of packed speech, beside the audio, so that another tokenizer
// does not repack it: labels.NAME.bin.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

class LabelFile {
 public:
  LabelFile() : offsets_{0} {}
  /// For those who do not ask what is said in so many utterances: no ids, of no vocabulary.
  static LabelFile none(std::int64_t utterances);
  /// FOLDER/labels.NAME.bin. Throws DeckError for a name with other characters than letters,
  /// digits, '_' and '-'.
  static std::string path(const std::string& folder, const std::string& name);
  /// Local. labels.NAME.bin of the folder; `catalog_hash`: of the catalog it must belong to. Throws
  /// DataError: missing (names `choir prepare tokens`), damaged, of another catalog.
  static LabelFile open(const std::string& folder, const std::string& name,
                        std::uint64_t catalog_hash);
  /// Local. Writes it (temporary file, rename). `utterances`: ids of every utterance; an utterance
  /// that the tokenizer cannot write has `bad` set.
  static void write(const std::string& folder, const std::string& name, std::uint64_t catalog_hash,
                    std::uint64_t tokenizer_hash, std::int64_t vocab_size,
                    const std::vector<std::vector<std::int32_t>>& utterances,
                    const std::vector<bool>& bad);

  /// Utterances, those without labels included.
  std::int64_t size() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::int64_t vocab_size() const { return vocab_size_; }  ///< without the blank
  std::uint64_t tokenizer_hash() const { return tokenizer_hash_; }
  std::span<const std::int32_t> operator[](std::int64_t i) const;
  /// Its text has characters outside the vocabulary: no labels.
  bool bad(std::int64_t i) const { return bad_[static_cast<std::size_t>(i)]; }

  /// To and from bytes, for sending to ranks that then need not read the file.
  std::string serialise() const;
  static LabelFile deserialise(std::string_view bytes);

 private:
  static LabelFile from_image(std::string_view image, const std::string& source);

  std::int64_t vocab_size_ = 0;
  std::uint64_t tokenizer_hash_ = 0;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int32_t> ids_;
  std::vector<bool> bad_;
};

}  // namespace choir
