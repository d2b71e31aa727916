#pragma once
// One column of text in Parquet files: the footer; the values of a row group, whose pages have
// version 1 or 2 and the encodings PLAIN, RLE_DICTIONARY (and its older name PLAIN_DICTIONARY) or
// DELTA_LENGTH_BYTE_ARRAY; and the compact protocol of Thrift, in which the footer and the headers
// of pages are written. The formats are those of apache/parquet-format (parquet.thrift, README.md,
// Encodings.md) and of Thrift's thrift-compact-protocol.md.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/sources/codecs.hpp"

namespace choir {

/// Reads records of the compact protocol without copying. All members throw DataError for bytes
/// that are no such record.
class ThriftReader {
 public:
  ThriftReader(std::string_view bytes, std::string source)
      : bytes_(bytes), source_(std::move(source)) {}

  enum Kind : std::uint8_t {
    kTrue = 1,
    kFalse,
    kByte,
    kI16,
    kI32,
    kI64,
    kDouble,
    kText,
    kList,
    kSet,
    kMap,
    kRecord
  };
  /// Calls field(id, kind) for each field of a record. The callback reads the value and returns
  /// true, or returns false, and the value is skipped.
  using Field = std::function<bool(std::int64_t id, Kind kind)>;
  void record(const Field& field);
  /// Calls item(kind) for each item of a list; the callback must read the item.
  void list(const std::function<void(Kind kind)>& item);
  /// An integer of any width, or a truth value.
  std::int64_t integer(Kind kind);
  std::string_view text(Kind kind);
  void skip(Kind kind);
  /// The bytes that were read so far.
  std::size_t position() const { return at_; }

 private:
  std::uint8_t byte();
  std::uint64_t varint();
  std::int64_t zigzag();
  std::string_view take(std::uint64_t count);
  [[noreturn]] void refuse() const;

  std::string_view bytes_;
  std::string source_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

/// The part of a column in one row group.
struct ParquetChunk {
  std::int64_t rows = 0;    ///< of the group
  std::int64_t offset = 0;  ///< of the first page in the file
  std::int64_t packed_bytes = 0, bytes = 0;
  Codec codec = Codec::none;
};

/// One flat column of BYTE_ARRAY values.
struct ParquetColumn {
  bool optional = false;  ///< values may be null
  std::vector<ParquetChunk> chunks;
};

/// Local. Finds `column` in a Parquet file. Throws DataError that names the file if it is no
/// Parquet file, damaged or encrypted; if the column is absent (naming those that exist), nested,
/// repeated or not of text; and for a codec that is not read (see require_codec()).
ParquetColumn read_parquet_footer(const std::string& path, const std::string& column);

/// Calls use(row, value) for each row of the group that is not null; rows count from 0. The bytes
/// of a value are those of the file (they may be no UTF-8) and valid during the call. Local. A page
/// is in memory, and the packed bytes of the group. Throws DataError that names the file and the
/// row group if it is damaged or has another encoding.
using UseValue = std::function<void(std::int64_t row, std::string_view value)>;
void read_parquet_group(const std::string& path, const ParquetColumn& column, std::size_t group,
                        const UseValue& use);

}  // namespace choir
