#pragma once
// A folder of packed speech, as `choir prepare audio` writes it: few large files of 16-bit samples
// and one index with where every utterance lies, how long it is, its checksum and its text.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// The files of the folder:
/// audio_00000.pcm ...   64 bytes of header (magic "CHOIRPCM", version u32, sample rate u32,
///                       samples u64, crc32c of the payload u32, zeros), then i16 samples, little
///                       endian; utterances begin at multiples of 32 samples
/// index.bin             64 bytes of header (magic "CHOIRIDX", version u32, endianness mark u32,
///                       sample rate u32, shards u32, utterances u64, bytes u64 and crc32c u32 of
///                       the manifest, zeros), one record of 40 bytes an utterance (the fields of
///                       Utterance in their order), crc32c u32 of all of that
/// manifest.jsonl        one JSON line an utterance: id, text, duration, lang, and what else its
///                       source said; its byte range stands in the record
/// labels.NAME.bin       token ids made of the texts by a tokenizer: the format stands in
///                       choir/data/speech/label_file.hpp
/// report.json           hours, counts, everything left out and why
class AudioCatalog {
 public:
  struct Utterance {
    std::int32_t shard = 0;
    std::uint32_t crc = 0;   ///< crc32c of its samples
    std::int64_t first = 0;  ///< sample in the shard
    std::int64_t samples = 0;
    std::int64_t line = 0;          ///< byte of its line in the manifest ...
    std::int32_t line_bytes = 0;    ///< ... and its length, newline not included
    std::int32_t text_letters = 0;  ///< code points of its text
    friend bool operator==(const Utterance&, const Utterance&) = default;
  };

  /// Local. Reads and checks the index, and the length of the manifest (not the audio). Throws
  /// DataError: missing (names `choir prepare audio`), truncated, damaged, of another version.
  static AudioCatalog open(const std::string& folder);
  /// Local. Writes index.bin (temporary file, sync, rename): the last act of preparing a folder.
  /// Throws StorageError.
  static void write(const std::string& folder, int sample_rate, int shards,
                    const std::vector<Utterance>& utterances, std::int64_t manifest_bytes,
                    std::uint32_t manifest_crc);

  const std::string& folder() const { return folder_; }
  int sample_rate() const { return sample_rate_; }
  std::int64_t size() const { return static_cast<std::int64_t>(utterances_.size()); }
  const Utterance& operator[](std::int64_t i) const {
    return utterances_[static_cast<std::size_t>(i)];
  }
  int shards() const { return shards_; }
  std::string shard_path(int shard) const;
  double hours() const;
  /// Hash of the index; names the state of the data in checkpoints and label files.
  std::uint64_t hash() const { return hash_; }

  /// Local, reads the manifest: the line itself, and its text ("" where the source had none).
  std::string line(std::int64_t i) const;
  std::string text(std::int64_t i) const;

  /// To and from bytes, for sending to ranks that then need not read the index.
  std::string serialise() const;
  static AudioCatalog deserialise(std::string_view bytes);

  static constexpr std::int64_t kHeaderBytes = 64;

 private:
  std::string folder_;
  int sample_rate_ = 0, shards_ = 0;
  std::uint64_t hash_ = 0;
  std::vector<Utterance> utterances_;
};

}  // namespace choir
