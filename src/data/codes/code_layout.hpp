#pragma once
// Layout of codes.NAME.bin.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "choir/core/crc32c.hpp"
#include "choir/data/codes/code_file.hpp"

namespace choir {

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
