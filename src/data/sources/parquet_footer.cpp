#include "src/data/sources/parquet.hpp"

#include <array>
#include <cstring>
#include <optional>

#include "src/core/file.hpp"
#include "src/core/text.hpp"

namespace choir {

void ThriftReader::refuse() const {
  throw DataError(fmt::format("{}: the metadata are damaged", source_),
                  "copy or write the file again");
}

std::uint8_t ThriftReader::byte() {
  if (at_ >= bytes_.size()) refuse();
  return static_cast<std::uint8_t>(bytes_[at_++]);
}

std::uint64_t ThriftReader::varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const std::uint8_t next = byte();
    value |= static_cast<std::uint64_t>(next & 0x7Fu) << shift;
    if (next < 0x80) return value;
  }
  refuse();
}

std::int64_t ThriftReader::zigzag() {
  const std::uint64_t value = varint();
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

std::string_view ThriftReader::take(std::uint64_t count) {
  if (count > bytes_.size() - at_) refuse();
  at_ += count;
  return bytes_.substr(at_ - count, count);
}

void ThriftReader::record(const Field& field) {
  constexpr int kDeepest = 32;
  if (++depth_ > kDeepest) refuse();
  std::int64_t id = 0;
  for (std::uint8_t head = byte(); head != 0; head = byte()) {
    const int step = head >> 4;
    id = step != 0 ? id + step : zigzag();
    if (id < 0 || id > INT16_MAX) refuse();
    const auto kind = static_cast<Kind>(head & 15u);
    if (!field(id, kind)) skip(kind);
  }
  --depth_;
}

void ThriftReader::list(const std::function<void(Kind)>& item) {
  const std::uint8_t head = byte();
  const std::uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
  if (count > bytes_.size() - at_) refuse();  // every item has a byte or more
  for (std::uint64_t i = 0; i < count; ++i) item(static_cast<Kind>(head & 15u));
}

std::int64_t ThriftReader::integer(Kind kind) {
  switch (kind) {
    case kTrue:
      return 1;
    case kFalse:
      return 0;
    case kByte:
      return static_cast<std::int8_t>(byte());
    case kI16:
    case kI32:
    case kI64:
      return zigzag();
    default:
      refuse();
  }
}

std::string_view ThriftReader::text(Kind kind) {
  if (kind != kText) refuse();
  return take(varint());
}

void ThriftReader::skip(Kind kind) {
  constexpr int kDeepest = 32;
  switch (kind) {
    case kDouble:
      take(8);
      return;
    case kText:
      text(kind);
      return;
    case kList:
    case kSet:
      if (++depth_ > kDeepest) refuse();
      // A truth value in a list has a byte of its own.
      list([this](Kind of) { of == kTrue || of == kFalse ? void(byte()) : skip(of); });
      --depth_;
      return;
    case kMap:
      refuse();  // the format of Parquet has none
    case kRecord:
      record([](std::int64_t, Kind) { return false; });
      return;
    default:
      integer(kind);
  }
}

namespace {

using Kind = ThriftReader::Kind;

constexpr const char* kWriteAgain = "copy or write the file again";
constexpr std::int64_t kMostFooter = std::int64_t{256} << 20;
constexpr std::int64_t kMostRows = INT32_MAX;
constexpr std::int64_t kByteArray = 6, kRepeated = 2;

std::string_view type_name(std::int64_t type) {
  constexpr std::array<std::string_view, 8> kNames{"BOOLEAN",
                                                   "INT32",
                                                   "INT64",
                                                   "INT96",
                                                   "FLOAT",
                                                   "DOUBLE",
                                                   "BYTE_ARRAY",
                                                   "FIXED_LEN_"
                                                   "BYTE_ARRAY"};
  return type >= 0 && type < std::ssize(kNames) ? kNames[static_cast<std::size_t>(type)]
                                                : "an unknown type";
}

struct SchemaElement {
  std::string name;
  std::int64_t type = -1, repetition = 0, children = 0;
};

/// The footer while it is read: the schema in the order of its tree, and the chunks of the column.
class FooterReader {
 public:
  FooterReader(std::string path, std::string column, std::int64_t file_bytes)
      : path_(std::move(path)), column_(std::move(column)), file_bytes_(file_bytes) {}

  ParquetColumn read(std::string_view footer) {
    ThriftReader thrift(footer, fmt::format("'{}'", path_));
    std::vector<SchemaElement> schema;
    ParquetColumn found;
    bool encrypted = false;
    thrift.record([&](std::int64_t id, Kind kind) {
      if (id == 8) encrypted = true;
      if (id == 2 && kind == Kind::kList)
        return thrift.list([&](Kind of) { schema.push_back(element(thrift, of)); }), true;
      if (id == 4 && kind == Kind::kList)
        return thrift.list([&](Kind of) { found.chunks.push_back(group(thrift, of)); }), true;
      return false;
    });
    if (encrypted) refuse("is encrypted, and encrypted Parquet is not read", "decrypt it");
    const SchemaElement leaf = flat_leaf(schema);
    found.optional = leaf.repetition == 1;
    for (const ParquetChunk& chunk : found.chunks)
      require_codec(chunk.codec, fmt::format("'{}', column '{}'", path_, column_));
    return found;
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const char* hint = kWriteAgain) const {
    throw DataError(fmt::format("'{}' {}", path_, what), hint);
  }

  SchemaElement element(ThriftReader& thrift, Kind kind) const {
    if (kind != Kind::kRecord) refuse("has damaged metadata");
    SchemaElement made;
    thrift.record([&](std::int64_t id, Kind of) {
      switch (id) {
        case 1:
          return made.type = thrift.integer(of), true;
        case 3:
          return made.repetition = thrift.integer(of), true;
        case 4:
          return made.name = thrift.text(of), true;
        case 5:
          return made.children = thrift.integer(of), true;
        default:
          return false;
      }
    });
    return made;
  }

  /// The top-level column, which has no children.
  SchemaElement flat_leaf(const std::vector<SchemaElement>& schema) const {
    std::string names;
    std::int64_t open = 0;  // elements of nested columns that follow
    for (std::size_t i = 1; i < schema.size(); ++i) {
      const SchemaElement& e = schema[i];
      const bool top = open == 0;
      if (e.children < 0 || e.children > std::ssize(schema)) refuse("has damaged metadata");
      open += e.children - (top ? 0 : 1);
      if (!top) continue;
      names += (names.empty() ? "" : ", ") + e.name;
      if (e.name != column_) continue;
      if (e.children > 0)
        refuse(fmt::format("has a nested column '{}', and only flat columns are read", column_),
               "name a column of plain text");
      if (e.repetition == kRepeated)
        refuse(fmt::format("has several values a row in column '{}'", column_),
               "name a column of plain text");
      if (e.type != kByteArray)
        refuse(
            fmt::format("has values of {} in column '{}', and no text", type_name(e.type), column_),
            "name a column of plain text");
      return e;
    }
    throw DataError(fmt::format("'{}' has no column '{}'", path_, column_),
                    fmt::format("its columns are: {}", names));
  }

  ParquetChunk group(ThriftReader& thrift, Kind kind) const {
    if (kind != Kind::kRecord) refuse("has damaged metadata");
    std::optional<ParquetChunk> mine;
    std::int64_t rows = -1;
    thrift.record([&](std::int64_t id, Kind of) {
      if (id == 3) return rows = thrift.integer(of), true;
      if (id != 1 || of != Kind::kList) return false;
      thrift.list([&](Kind each) {
        if (each != Kind::kRecord) refuse("has damaged metadata");
        if (auto chunk = chunk_of(thrift)) mine = chunk;
      });
      return true;
    });
    if (rows < 0 || rows > kMostRows) refuse(fmt::format("has a row group of {} rows", rows));
    if (!mine) return {.rows = -1};  // refused if the schema has the column
    mine->rows = rows;
    return *mine;
  }

  /// The chunk, if it is one of the column.
  std::optional<ParquetChunk> chunk_of(ThriftReader& thrift) const {
    ParquetChunk chunk;
    bool mine = false, elsewhere = false, encrypted = false;
    std::int64_t values = 0, data = 0, dictionary = 0;
    thrift.record([&](std::int64_t id, Kind kind) {
      if (id == 1) elsewhere = true;
      if (id == 8 || id == 9) encrypted = true;
      if (id != 3 || kind != Kind::kRecord) return false;
      thrift.record([&](std::int64_t field, Kind of) {
        switch (field) {
          case 3:
            return mine = is_mine(thrift), true;
          case 4:
            return chunk.codec = static_cast<Codec>(thrift.integer(of)), true;
          case 5:
            return values = thrift.integer(of), true;
          case 6:
            return chunk.bytes = thrift.integer(of), true;
          case 7:
            return chunk.packed_bytes = thrift.integer(of), true;
          case 9:
            return data = thrift.integer(of), true;
          case 11:
            return dictionary = thrift.integer(of), true;
          default:
            return false;
        }
      });
      return true;
    });
    if (encrypted && !mine) return std::nullopt;
    if (!mine) return std::nullopt;
    if (encrypted)
      refuse(fmt::format("has an encrypted column '{}', which is not read", column_), "decrypt it");
    if (elsewhere)
      refuse(fmt::format("has its column '{}' in another file, which is not read", column_));
    chunk.offset = dictionary > 0 && dictionary < data ? dictionary : data;
    if (values < 0 || chunk.bytes < 0 || chunk.offset < 4 || chunk.packed_bytes < 0 ||
        chunk.offset > file_bytes_ || chunk.packed_bytes > file_bytes_ - chunk.offset)
      refuse("has damaged metadata: pages outside the file");
    return chunk;
  }

  bool is_mine(ThriftReader& thrift) const {
    std::vector<std::string_view> path;
    thrift.list([&](Kind kind) { path.push_back(thrift.text(kind)); });
    return path.size() == 1 && path[0] == column_;
  }

  std::string path_, column_;
  std::int64_t file_bytes_;
};

}  // namespace

ParquetColumn read_parquet_footer(const std::string& path, const std::string& column) {
  constexpr std::int64_t kEnds = 12;  // "PAR1" at both ends, and the length of the footer
  const PosixFile file = PosixFile::for_reading(path);
  std::array<char, 8> end{};
  if (file.size() < kEnds)
    throw DataError(fmt::format("'{}' is no Parquet file: it has {} bytes", path, file.size()),
                    kWriteAgain);
  file.read_at(end.data(), end.size(), file.size() - 8);
  const std::string_view magic(end.data() + 4, 4);
  if (magic == "PARE")
    throw DataError(fmt::format("'{}' is encrypted, and encrypted Parquet is not read", path),
                    "decrypt it");
  if (magic != "PAR1")
    throw DataError(fmt::format("'{}' is no Parquet file, or cut off: no PAR1 at its end", path),
                    kWriteAgain);
  std::uint32_t length = 0;
  std::memcpy(&length, end.data(), sizeof length);
  if (length > file.size() - kEnds || length > kMostFooter)
    throw DataError(fmt::format("'{}' is damaged: a footer of {} bytes", path, length),
                    kWriteAgain);
  std::string footer(length, '\0');
  file.read_at(footer.data(), footer.size(), file.size() - 8 - length);
  ParquetColumn found = FooterReader(path, column, file.size()).read(footer);
  for (const ParquetChunk& chunk : found.chunks)
    if (chunk.rows < 0)
      throw DataError(fmt::format("'{}' has a row group without its column '{}'", path, column),
                      kWriteAgain);
  return found;
}

}  // namespace choir
