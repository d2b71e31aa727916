#include "src/data/sources/parquet.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "src/core/file.hpp"

namespace choir {
namespace {

using Kind = ThriftReader::Kind;

[[noreturn]] void refuse_pages(const std::string& source, const std::string& what) {
  throw DataError(fmt::format("{}: {}", source, what), "copy or write the file again");
}

/// Bytes of a page that are consumed from the front.
class PageBytes {
 public:
  PageBytes(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(&source) {}

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size()) refuse_pages(*source_, "a page is damaged: it ends too early");
    const std::string_view front = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return front;
  }
  std::uint32_t u32() {
    std::uint32_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto next = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(next & 0x7Fu) << shift;
      if (next < 0x80) return value;
    }
    refuse_pages(*source_, "a page is damaged: a number without an end");
  }
  std::string_view rest() const { return bytes_; }
  const std::string& source() const { return *source_; }

 private:
  std::string_view bytes_;
  const std::string* source_;
};

/// Number i of those that are packed with `bits` bits each, the lowest bits first.
std::uint64_t packed_number(std::string_view bytes, std::uint64_t i, unsigned bits) {
  std::uint64_t value = 0;
  for (unsigned done = 0; done < bits;) {
    const std::uint64_t at = i * bits + done;
    const unsigned shift = at % 8, here = std::min(8 - shift, bits - done);
    const auto byte = static_cast<unsigned char>(bytes[at / 8]);
    value |= static_cast<std::uint64_t>((byte >> shift) & ((1u << here) - 1)) << done;
    done += here;
  }
  return value;
}

/// Numbers in the hybrid of repeated numbers and packed ones (RLE in the list of encodings).
class HybridNumbers {
 public:
  HybridNumbers(PageBytes bytes, unsigned bits) : bytes_(bytes), bits_(bits) {
    if (bits > 32) refuse_pages(bytes_.source(), fmt::format("numbers of {} bits", bits));
  }
  std::uint32_t next() {
    while (at_ == count_) open_run();
    if (packed_.empty()) return ++at_, repeated_;
    return static_cast<std::uint32_t>(packed_number(packed_, at_++, bits_));
  }
  /// Numbers that are certainly equal to the one that next() returns.
  std::uint64_t equal() {
    while (at_ == count_) open_run();
    return packed_.empty() ? count_ - at_ : 1;
  }
  void skip(std::uint64_t count) { at_ += count; }

 private:
  void open_run() {
    const std::uint64_t head = bytes_.varint();
    at_ = 0;
    packed_ = {};
    if ((head & 1) == 0) {
      count_ = head >> 1;
      repeated_ = 0;
      const std::string_view value = bytes_.take((bits_ + 7) / 8);
      std::memcpy(&repeated_, value.data(), value.size());
      return;
    }
    const std::uint64_t groups = head >> 1;
    if (groups > (std::uint64_t{1} << 32)) refuse_pages(bytes_.source(), "a page is damaged");
    // Writers may leave out the bytes of numbers behind the last one.
    const std::uint64_t bytes = std::min<std::uint64_t>(groups * bits_, bytes_.rest().size());
    packed_ = bytes_.take(bytes);
    count_ = bits_ == 0 ? groups * 8 : bytes * 8 / bits_;
    repeated_ = 0;
    if (count_ == 0) refuse_pages(bytes_.source(), "a page is damaged: a run of nothing");
  }

  PageBytes bytes_;
  unsigned bits_;
  std::uint64_t at_ = 0, count_ = 0;
  std::uint32_t repeated_ = 0;
  std::string_view packed_;
};

/// Numbers in DELTA_BINARY_PACKED.
class DeltaNumbers {
 public:
  explicit DeltaNumbers(PageBytes bytes) : bytes_(bytes) {
    block_ = bytes_.varint();
    minis_ = bytes_.varint();
    total_ = bytes_.varint();
    value_ = zigzag();
    mini_ = minis_;
    if (minis_ == 0 || block_ == 0 || block_ > kMostBlock || minis_ > block_ ||
        block_ % minis_ != 0)
      refuse_pages(bytes_.source(), "a page is damaged: blocks of lengths");
  }
  std::uint64_t total() const { return total_; }
  std::int64_t next() {
    if (given_ == total_) refuse_pages(bytes_.source(), "a page has fewer lengths than values");
    if (given_++ == 0) return value_;
    if (in_mini_ == 0) open_mini();
    const std::uint64_t delta = packed_number(packed_, in_mini_, width_);
    in_mini_ = (in_mini_ + 1) % (block_ / minis_);
    // The differences wrap around, as those of the format do.
    value_ = static_cast<std::int64_t>(static_cast<std::uint64_t>(value_) +
                                       static_cast<std::uint64_t>(least_) + delta);
    return value_;
  }
  /// The bytes behind the numbers, once all were given.
  PageBytes rest() const { return bytes_; }

 private:
  static constexpr std::uint64_t kMostBlock = std::uint64_t{1} << 20;

  std::int64_t zigzag() {
    const std::uint64_t value = bytes_.varint();
    return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
  }
  void open_mini() {
    if (mini_ == minis_) {
      least_ = zigzag();
      widths_ = bytes_.take(minis_);
      mini_ = 0;
    }
    width_ = static_cast<unsigned char>(widths_[mini_++]);
    if (width_ > 64) refuse_pages(bytes_.source(), fmt::format("numbers of {} bits", width_));
    packed_ = bytes_.take((block_ / minis_ * width_ + 7) / 8);
  }

  PageBytes bytes_;
  std::uint64_t block_ = 0, minis_ = 0, total_ = 0, given_ = 0;
  std::uint64_t mini_ = 0, in_mini_ = 0;  // mini_ == minis_: a block begins
  std::int64_t value_ = 0, least_ = 0;
  unsigned width_ = 0;
  std::string_view widths_, packed_;
};

struct PageHeader {
  enum Type : std::int64_t { kData = 0, kIndex = 1, kDictionary = 2, kDataV2 = 3 };
  std::int64_t type = -1, bytes = -1, packed_bytes = -1;
  std::int64_t values = -1, encoding = -1;
  std::int64_t definition_bytes = 0, repetition_bytes = 0;  ///< of version 2
  bool packed = true;
};

class GroupReader {
 public:
  GroupReader(const std::string& path, const ParquetColumn& column, std::size_t group,
              const UseValue& use)
      : source_(fmt::format("'{}', row group {}", path, group)),
        column_(column),
        chunk_(column.chunks[group]),
        use_(use) {
    packed_.resize(static_cast<std::size_t>(chunk_.packed_bytes));
    PosixFile::for_reading(path).read_at(packed_.data(), packed_.size(), chunk_.offset);
  }

  void run() {
    std::string_view left = packed_;
    while (row_ < chunk_.rows) {
      if (left.empty())
        refuse_pages(source_, fmt::format("{} of {} rows are there", row_, chunk_.rows));
      const PageHeader header = read_header(left);
      const auto size = static_cast<std::size_t>(header.packed_bytes);
      const std::string_view body = left.substr(0, size);
      left.remove_prefix(size);
      if (header.type == PageHeader::kDictionary) read_dictionary(header, body);
      if (header.type == PageHeader::kData || header.type == PageHeader::kDataV2)
        read_data(header, body);
    }
  }

 private:
  PageHeader read_header(std::string_view& left) const {
    constexpr std::int64_t kMostPage = std::int64_t{1} << 30;
    ThriftReader thrift(left, source_);
    PageHeader header;
    thrift.record([&](std::int64_t id, Kind kind) {
      switch (id) {
        case 1:
          return header.type = thrift.integer(kind), true;
        case 2:
          return header.bytes = thrift.integer(kind), true;
        case 3:
          return header.packed_bytes = thrift.integer(kind), true;
        case 5:
        case 7:
        case 8:
          return kind == Kind::kRecord && (read_kind(thrift, id, header), true);
        default:
          return false;
      }
    });
    left.remove_prefix(thrift.position());
    if (header.bytes < 0 || header.packed_bytes < 0 || header.packed_bytes > std::ssize(left))
      refuse_pages(source_, "a page is damaged: its size");
    if (header.bytes > kMostPage) refuse_pages(source_, "a page has more than 1 GiB");
    if (header.type != PageHeader::kIndex && (header.values < 0 || header.encoding < 0))
      refuse_pages(source_, "a page is damaged: its header");
    return header;
  }

  static void read_kind(ThriftReader& thrift, std::int64_t of_page, PageHeader& header) {
    const bool v2 = of_page == 8;
    thrift.record([&](std::int64_t id, Kind kind) {
      if (id == 1) return header.values = thrift.integer(kind), true;
      if (id == (v2 ? 4 : 2)) return header.encoding = thrift.integer(kind), true;
      if (v2 && id == 5) return header.definition_bytes = thrift.integer(kind), true;
      if (v2 && id == 6) return header.repetition_bytes = thrift.integer(kind), true;
      if (v2 && id == 7) return header.packed = thrift.integer(kind) != 0, true;
      return false;
    });
  }

  std::string unpack(std::string_view body, std::int64_t bytes, bool packed) const {
    return unpacked(packed ? chunk_.codec : Codec::none, body, static_cast<std::size_t>(bytes),
                    source_);
  }

  void read_dictionary(const PageHeader& header, std::string_view body) {
    if (!words_.empty()) refuse_pages(source_, "two dictionaries");
    dictionary_ = unpack(body, header.bytes, true);
    PageBytes bytes(dictionary_, source_);
    for (std::int64_t i = 0; i < header.values; ++i) words_.push_back(bytes.take(bytes.u32()));
  }

  void read_data(const PageHeader& header, std::string_view body) {
    if (header.values > chunk_.rows - row_)
      refuse_pages(source_, fmt::format("more values than the {} rows", chunk_.rows));
    std::string_view levels;
    std::string page;
    std::string_view values;
    if (header.type == PageHeader::kDataV2) {
      // The levels come first and are never packed.
      const std::int64_t before = header.repetition_bytes + header.definition_bytes;
      if (header.repetition_bytes < 0 || header.definition_bytes < 0 || before > std::ssize(body) ||
          before > header.bytes)
        refuse_pages(source_, "a page is damaged: its levels");
      levels = body.substr(static_cast<std::size_t>(header.repetition_bytes),
                           static_cast<std::size_t>(header.definition_bytes));
      page = unpack(body.substr(static_cast<std::size_t>(before)), header.bytes - before,
                    header.packed);
      values = page;
    } else {
      page = unpack(body, header.bytes, true);
      PageBytes bytes(page, source_);
      if (column_.optional) levels = bytes.take(bytes.u32());
      values = bytes.rest();
    }
    give(header, levels, PageBytes(values, source_));
  }

  /// Calls visit(count, present) for runs of rows of a page.
  template <class Visit>
  void for_rows(const PageHeader& header, std::string_view levels, Visit&& visit) const {
    const auto rows = static_cast<std::uint64_t>(header.values);
    if (!column_.optional || levels.empty()) return visit(rows, true);
    HybridNumbers numbers(PageBytes(levels, source_), 1);
    for (std::uint64_t done = 0; done < rows;) {
      const std::uint64_t run = std::min(numbers.equal(), rows - done);
      const bool present = numbers.next() != 0;
      numbers.skip(run - 1);
      visit(run, present);
      done += run;
    }
  }

  template <class Next>
  void give_values(const PageHeader& header, std::string_view levels, Next&& next) {
    for_rows(header, levels, [&](std::uint64_t count, bool present) {
      for (std::uint64_t i = 0; present && i < count; ++i)
        use_(row_ + static_cast<std::int64_t>(i), next());
      row_ += static_cast<std::int64_t>(count);
    });
  }

  void give(const PageHeader& header, std::string_view levels, PageBytes values) {
    constexpr std::int64_t kPlain = 0, kPlainDictionary = 2, kDeltaLength = 6, kDictionary = 8;
    std::uint64_t present = 0;
    for_rows(header, levels,
             [&](std::uint64_t count, bool there) { present += there ? count : 0; });
    if (present == 0) {
      row_ += header.values;
    } else if (header.encoding == kPlain) {
      give_values(header, levels, [&] { return values.take(values.u32()); });
    } else if (header.encoding == kPlainDictionary || header.encoding == kDictionary) {
      const auto bits = static_cast<unsigned char>(values.take(1)[0]);
      HybridNumbers numbers(values, bits);
      give_values(header, levels, [&] {
        const std::uint32_t word = numbers.next();
        if (word >= words_.size())
          refuse_pages(source_, fmt::format("word {} of a dictionary of {}", word, words_.size()));
        return words_[word];
      });
    } else if (header.encoding == kDeltaLength) {
      DeltaNumbers lengths(values), all(values);
      if (all.total() != present)
        refuse_pages(source_, fmt::format("{} lengths of {} values", all.total(), present));
      for (std::uint64_t i = 0; i < present; ++i) static_cast<void>(all.next());
      PageBytes texts = all.rest();
      give_values(header, levels, [&] {
        const std::int64_t length = lengths.next();
        if (length < 0) refuse_pages(source_, "a page is damaged: a length below 0");
        return texts.take(static_cast<std::uint64_t>(length));
      });
    } else {
      refuse_encoding(header.encoding);
    }
  }

  [[noreturn]] void refuse_encoding(std::int64_t encoding) const {
    constexpr std::array<std::string_view, 10> kNames{
        "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
        "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
        "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
    const std::string name = encoding < std::ssize(kNames)
                                 ? std::string(kNames[static_cast<std::size_t>(encoding)])
                                 : fmt::format("number {}", encoding);
    throw DataError(fmt::format("{}: the encoding {} is not read", source_, name),
                    "write the file again with PLAIN, a dictionary or DELTA_LENGTH_BYTE_ARRAY");
  }

  std::string source_;
  const ParquetColumn& column_;
  const ParquetChunk& chunk_;
  const UseValue& use_;
  std::string packed_, dictionary_;
  std::vector<std::string_view> words_;
  std::int64_t row_ = 0;
};

}  // namespace

void read_parquet_group(const std::string& path, const ParquetColumn& column, std::size_t group,
                        const UseValue& use) {
  CHOIR_CHECK(group < column.chunks.size(), "row group {} of {}", group, column.chunks.size());
  GroupReader(path, column, group, use).run();
}

}  // namespace choir
