#pragma once
// A folder of packed speech, as `choir prepare audio` writes it: a few large files of 16-bit
// samples (shards) and an index with the location, length, checksum and text of every utterance.

#include <cstdint>
#include <memory>
#include <span>
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
///                       Utterance in their order), crc32c u32 of everything before it
/// manifest.jsonl        one JSON line per utterance: id, text, duration, lang, and the other keys
///                       of its source; the record holds its byte range
/// labels.NAME.bin       token ids of the texts; see LabelFile for the format
/// report.json           hours, counts, and everything left out with its reason
class AudioCatalog {
 public:
  struct Utterance {
    std::int32_t shard = 0;
    std::uint32_t crc = 0;   ///< crc32c of its samples
    std::int64_t first = 0;  ///< first sample in the shard
    std::int64_t samples = 0;
    std::int64_t line = 0;          ///< first byte of its line in the manifest ...
    std::int32_t line_bytes = 0;    ///< ... and its length, newline not included
    std::int32_t text_letters = 0;  ///< length of its text in code points
    friend bool operator==(const Utterance&, const Utterance&) = default;
  };

  /// Local. Reads and checks the index and the length of the manifest, but not the audio. Throws
  /// DataError if they are missing (the hint names `choir prepare audio`), truncated, damaged, or
  /// of another version.
  static AudioCatalog open(const std::string& folder);
  /// Local. Writes index.bin (temporary file, sync, rename), which completes the folder. Throws
  /// StorageError.
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
  /// Hash of the index; identifies the state of the data in checkpoints and label files.
  std::uint64_t hash() const { return hash_; }

  /// Local. Reads the line of an utterance from the manifest, or its text ("" if the source had
  /// none).
  std::string line(std::int64_t i) const;
  std::string text(std::int64_t i) const;
  /// Local. The recording of an utterance for people: "a.wav", "a.wav from 3.5 s", or the id of a
  /// cut. If its line cannot be read, "utterance 7 of 'FOLDER'".
  std::string name(std::int64_t i) const;

  /// Conversion to and from bytes, so that one rank reads the index and sends it to the others.
  std::string serialise() const;
  static AudioCatalog deserialise(std::string_view bytes);

  static constexpr std::int64_t kHeaderBytes = 64;

 private:
  std::string folder_;
  int sample_rate_ = 0, shards_ = 0;
  std::uint64_t hash_ = 0;
  std::vector<Utterance> utterances_;
};

struct AudioShardHeader {
  int sample_rate = 0;
  std::int64_t samples = 0;       ///< includes the zeros between utterances
  std::uint32_t payload_crc = 0;  ///< crc32c of all samples
};

std::string audio_shard_path(const std::string& folder, int shard);

/// Local. Reads and checks the header and the length of the file, but not the samples. Throws
/// DataError for a file that is missing, truncated, too long, or of another kind or version.
AudioShardHeader read_audio_shard_header(const std::string& path);

/// Writes one shard under a temporary name; finish() syncs it and renames it to `path`. If it is
/// destroyed before finish(), nothing remains. Throws StorageError if writing fails.
class AudioShardWriter {
 public:
  /// Utterances begin at multiples of this number of samples.
  static constexpr std::int64_t kAlignment = 32;

  AudioShardWriter(std::string path, int sample_rate);
  ~AudioShardWriter();
  AudioShardWriter(AudioShardWriter&&) noexcept;

  struct Place {
    std::int64_t first = 0;  ///< first sample in the shard
    std::uint32_t crc = 0;   ///< crc32c of the samples
  };
  Place append(std::span<const std::int16_t> samples);
  AudioShardHeader finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Local. Reads a recording and verifies its checksum. Throws DataError if it is missing, truncated
/// or damaged; the message names the recording.
std::vector<std::int16_t> read_packed_audio(const AudioCatalog& catalog, std::int64_t recording);

}  // namespace choir
