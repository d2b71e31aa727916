#pragma once
// The file codes.NAME.bin: codec codes of the recordings of a folder of packed speech, stored
// beside the audio, so that a model that speaks is trained without the codec. Its layout is at the
// end.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/core/hash.hpp"
#include "src/data/audio/packed_audio.hpp"

namespace choir {

/// Description of the codec of a file of codes, for readers that do not have the codec.
struct CodecDescription {
  std::uint64_t hash = 0;              ///< of its weights and settings
  int sample_rate = 0;                 ///< hertz
  std::int64_t frame_samples = 0;      ///< samples of a frame of codes
  std::int64_t codebooks = 0;          ///< K codes a frame
  std::int64_t codes_per_book = 0;     ///< N: codes are 0 ... N - 1, at most 65,536
  std::vector<std::uint16_t> silence;  ///< [K] a frame of digital silence
  friend bool operator==(const CodecDescription&, const CodecDescription&) = default;

  /// Frames of this many samples, the last one padded with zeros.
  std::int64_t frames_of(std::int64_t samples) const {
    return (samples + frame_samples - 1) / frame_samples;
  }
};

/// The codes of every recording of a catalog, read on request. Copies share one open file, which
/// several threads may read.
class CodeFile {
 public:
  /// FOLDER/codes.NAME.bin. Throws DeckError for a name with other characters than letters,
  /// digits, '_' and '-'.
  static std::string path(const std::string& folder, const std::string& name);
  /// Local. Opens the codes in the folder of `catalog` and checks everything except the codes,
  /// which read() checks. Throws DataError if the file is missing (naming `choir prepare codes`),
  /// truncated or too long, damaged, or if its version, the state of the audio, the number of
  /// recordings, the sample rate or the numbers of frames do not match.
  static CodeFile open(const AudioCatalog& catalog, const std::string& name);
  /// Local. Throws a DataError that names both codecs unless the codes are of this codec.
  void require(const CodecDescription& codec) const;

  const CodecDescription& codec() const;
  std::int64_t size() const;                          ///< recordings
  std::int64_t frames(std::int64_t recording) const;  ///< T
  std::int64_t frames() const;                        ///< frames of all recordings
  const std::string& path() const;

  /// Local. Returns frames [first, first + count) of a recording, [count, K]. All of them must
  /// exist, else Error. The whole recording (2 T K bytes) is read, so that its checksum can be
  /// compared. Throws DataError if it is damaged.
  std::vector<std::uint16_t> read(std::int64_t recording, std::int64_t first,
                                  std::int64_t count) const;
  /// All frames of a recording.
  std::vector<std::uint16_t> read(std::int64_t recording) const {
    return read(recording, 0, frames(recording));
  }

 private:
  struct State;
  explicit CodeFile(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

/// One recording, in the order of the catalog.
struct CodeRecord {
  std::uint32_t frames = 0;
  std::uint32_t crc = 0;  ///< crc32c of its codes
};

/// codes.NAME.bin, little-endian: this header; K codes of silence (u16) and zeros up to a multiple
/// of 8 bytes; a record for each recording; the codes of all recordings, [T, K] u16, concatenated.
struct CodeHeader {
  static constexpr std::array<char, 8> kMagic{'C', 'H', 'O', 'I', 'R', 'C', 'D', 'S'};
  static constexpr std::uint32_t kVersion = 1, kEndiannessMark = 0x01020304u;

  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t endianness = kEndiannessMark;
  std::uint64_t catalog_hash = 0;
  std::uint64_t codec_hash = 0;
  std::uint64_t recordings = 0;
  std::uint64_t frames = 0;  ///< of all recordings
  std::uint32_t sample_rate = 0;
  std::uint32_t frame_samples = 0;
  std::uint32_t codebooks = 0;
  std::uint32_t codes_per_book = 0;
  std::array<std::uint32_t, 14> reserved{};
  std::uint32_t index_crc = 0;   ///< crc32c of silence and records
  std::uint32_t header_crc = 0;  ///< crc32c of the bytes before it

  std::uint32_t checksum() const { return crc32c(this, offsetof(CodeHeader, header_crc)); }
  std::int64_t silence_bytes() const { return (2 * std::int64_t{codebooks} + 7) / 8 * 8; }
  std::int64_t records_at() const {
    return static_cast<std::int64_t>(sizeof(CodeHeader)) + silence_bytes();
  }
  std::int64_t codes_at() const {
    return records_at() + static_cast<std::int64_t>(recordings * sizeof(CodeRecord));
  }
  std::int64_t frame_bytes() const { return 2 * std::int64_t{codebooks}; }
  /// The size of the whole file.
  std::int64_t bytes() const {
    return codes_at() + static_cast<std::int64_t>(frames) * frame_bytes();
  }
};
static_assert(sizeof(CodeHeader) == 128);

/// Limits of a plausible codec, with which products cannot overflow.
inline constexpr std::int64_t kMostCodebooks = 1024, kMostCodesPerBook = 65536;
inline constexpr std::int64_t kMostFrameSamples = 1 << 20, kMostCodecRate = 1000000;
inline constexpr std::int64_t kMostRecordings = std::int64_t{1} << 32;
inline constexpr std::int64_t kMostFrames = std::int64_t{1} << 40;

/// The fault in the numbers of a codec, in words; "" for none.
std::string fault_of(const CodecDescription& codec);
/// The header of a file of codes for a codec and the recordings of a catalog, without checksums.
CodeHeader code_header(const AudioCatalog& catalog, const CodecDescription& codec);
/// The bytes between header and codes.
std::string code_index(const CodecDescription& codec, const std::vector<CodeRecord>& records);

}  // namespace choir
