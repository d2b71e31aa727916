#pragma once
// Native token files (.tok): one self-describing file of token ids, so that a wrong tokenizer, a
// truncated copy or a flipped bit is found before training and not in the loss.
//
//   byte  0  "CHOIRTOK"
//         8  u32 version (1)            12  u32 endianness mark 0x01020304
//        16  u32 bytes per token, 2|4   20  u32 vocabulary size
//        24  u64 number of tokens       32  u64 vocabulary hash (Tokenizer::hash)
//        40  u32 crc32c of the payload  44  16 zero bytes   60  u32 crc32c of bytes 0..59
//        64  the tokens, little-endian: u16 when the vocabulary has at most 65,535 entries, else
//        i32
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace choir {

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

/// Local. Reads and checks the header and the length of the file, not the payload. Throws DataError
/// for a file that is missing, empty, truncated, too long, of another kind, version or endianness,
/// or whose header does not match its checksum.
TokenFileHeader read_token_file_header(const std::string& path);

/// Writes one native file under a temporary name; finish() makes it appear under `path`, synced.
/// Destroyed without finish(), nothing remains. Throws StorageError when the disk refuses.
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

}  // namespace choir
