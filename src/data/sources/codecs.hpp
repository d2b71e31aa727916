#pragma once
// Decompression with the libraries that this program was built with: blocks of a known size, as
// the pages of a Parquet file, and streams. Local functions.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "choir/core/error.hpp"

namespace choir {

/// The codecs of Parquet, with the numbers that its format gives them.
enum class Codec : std::int32_t {
  none = 0,
  snappy = 1,
  gzip = 2,
  lzo = 3,
  brotli = 4,
  lz4 = 5,
  zstd = 6,
  lz4_raw = 7
};
std::string name_of(Codec codec);

/// Throws DataError that names the codec if it is one that is never read (LZO, Brotli, LZ4) or
/// unknown, and DeckError if this build lacks its library. `source` begins the message.
void require_codec(Codec codec, const std::string& source);

/// The `bytes` bytes that `packed` unpacks to. Throws as require_codec(), and DataError if it is
/// damaged or unpacks to another number of bytes. Memory beyond `bytes` is never allocated.
std::string unpacked(Codec codec, std::string_view packed, std::size_t bytes,
                     const std::string& source);

/// The bytes of a file. Files of gzip (of several members, too) and zstd (of several frames, too)
/// are recognised by their first bytes and unpacked.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Reads up to `most` bytes; 0 at the end. Throws DataError that names the file if it cannot be
  /// read, or if it is packed and is damaged or cut off.
  virtual std::size_t read(char* to, std::size_t most) = 0;
};
/// Throws DataError if the file cannot be opened, DeckError if this build cannot unpack it.
std::unique_ptr<ByteStream> open_bytes(const std::string& path);
/// The bytes [begin, end) of a file as they are.
std::unique_ptr<ByteStream> open_bytes(const std::string& path, std::int64_t begin,
                                       std::int64_t end);
/// The codec that the first bytes of a file show: gzip, zstd or none. Throws DataError if it cannot
/// be opened.
Codec packing_of(const std::string& path);

}  // namespace choir
