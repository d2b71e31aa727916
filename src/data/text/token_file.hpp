#pragma once
// Files of token ids: the native format, which is self-describing, so that a wrong vocabulary, a
// truncated copy or a flipped bit is detected before training and not in the loss; and the index of
// Megatron-LM.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace choir {

/// The header of a native file (.tok), whose format is
///   byte  0  "CHOIRTOK"
///         8  u32 version (1)            12  u32 endianness mark 0x01020304
///        16  u32 bytes per token, 2|4   20  u32 vocabulary size
///        24  u64 number of tokens       32  u64 vocabulary hash (Vocabulary::hash)
///        40  u32 crc32c of the payload  44  16 zero bytes   60  u32 crc32c of bytes 0..59
///        64  the tokens, little-endian: u16 when the vocabulary has at most 65,535 entries, else
///            i32
struct TokenFileHeader {
  int token_bytes = 2;
  std::uint32_t vocab_size = 0;
  std::uint64_t count = 0;
  std::uint64_t vocab_hash = 0;
  std::uint32_t payload_crc = 0;
};

inline constexpr std::int64_t kTokenFileHeaderBytes = 64;

/// 2 for vocabularies of at most 65,535 entries, else 4.
int token_bytes_for(std::int64_t vocab_size);

/// Local. Reads and checks the header and the length of the file, but not the payload. Throws
/// DataError for a file that is missing, empty, truncated, too long, or of another kind, version or
/// endianness, and if the header does not match its checksum.
TokenFileHeader read_token_file_header(const std::string& path);

/// Writes one native file under a temporary name; finish() syncs it and renames it to `path`. If it
/// is destroyed before finish(), nothing remains. Throws StorageError if writing fails.
class TokenFileWriter {
 public:
  TokenFileWriter(std::string path, std::int64_t vocab_size, std::uint64_t vocab_hash);
  ~TokenFileWriter();
  TokenFileWriter(TokenFileWriter&&) noexcept;

  /// Ids must lie in [0, vocab_size); DataError otherwise.
  void append(std::span<const std::int32_t> tokens);
  std::int64_t count() const;
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Offsets in an .idx file: the numbers of sequences and documents, and the lengths of sequences.
inline constexpr std::int64_t kIndexSequences = 9 + 8 + 1, kIndexDocuments = kIndexSequences + 8,
                              kIndexFixedBytes = kIndexDocuments + 8;

/// Local. Reads and checks the .idx file beside a Megatron-LM .bin file: "MMIDIDX\0\0", u64 version
/// 1, u8 type code, u64 sequences, u64 documents, i32 lengths[sequences], i64 byte
/// pointers[sequences], i64 first sequences[documents]. Returns the bytes per token (2 or 4).
/// Throws DataError if the index is damaged, has a type that is no token type, or does not account
/// for exactly the bytes of the .bin file.
int read_megatron_index(const std::string& index_path, const std::string& bin_path);

}  // namespace choir
