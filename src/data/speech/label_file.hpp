#pragma once
// Label files, labels.NAME.bin: the token ids of the texts of a folder of packed speech. They lie
// beside the audio, so another tokenizer does not require packing it again.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// The name of labels NAME in given units, for folders that runs with different units may share:
/// "bpe_256-HASH". Such labels are preferred to those of the plain name.
std::string own_labels_name(const std::string& name, std::uint64_t tokenizer_hash);

class LabelFile {
 public:
  LabelFile() : offsets_{0} {}
  /// Empty labels for `utterances` utterances and no vocabulary, for readers that need no texts.
  static LabelFile none(std::int64_t utterances);
  /// Returns FOLDER/labels.NAME.bin. Throws DeckError for a name with characters other than
  /// letters, digits, '_' and '-'.
  static std::string path(const std::string& folder, const std::string& name);
  /// Local. Reads labels.NAME.bin of the folder; `catalog_hash` is the hash of the catalog that it
  /// must belong to. Throws DataError if the file is missing (the hint names `choir prepare
  /// tokens`), damaged, or belongs to another catalog.
  static LabelFile open(const std::string& folder, const std::string& name,
                        std::uint64_t catalog_hash);
  /// The same for a file that may be missing, damaged, or in other units: std::nullopt then.
  static std::optional<LabelFile> find(const std::string& folder, const std::string& name,
                                       std::uint64_t catalog_hash, std::uint64_t tokenizer_hash);
  /// Labels in memory, for folders that cannot or should not be written: see write().
  static LabelFile made(std::uint64_t tokenizer_hash, std::int64_t vocab_size,
                        const std::vector<std::vector<std::int32_t>>& utterances,
                        const std::vector<bool>& bad);
  /// Local. Writes the file under a temporary name and renames it. `utterances` holds the ids of
  /// every utterance; `bad` is set for an utterance whose text the tokenizer cannot encode.
  static void write(const std::string& folder, const std::string& name, std::uint64_t catalog_hash,
                    std::uint64_t tokenizer_hash, std::int64_t vocab_size,
                    const std::vector<std::vector<std::int32_t>>& utterances,
                    const std::vector<bool>& bad);

  /// Number of utterances, including those without labels.
  std::int64_t size() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::int64_t vocab_size() const { return vocab_size_; }  ///< excludes the blank
  std::uint64_t tokenizer_hash() const { return tokenizer_hash_; }
  std::span<const std::int32_t> operator[](std::int64_t i) const;
  /// True if the text has characters outside the vocabulary, so that there are no labels.
  bool bad(std::int64_t i) const { return bad_[static_cast<std::size_t>(i)]; }

  /// Conversion to and from bytes, so that one rank reads the file and sends it to the others.
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
