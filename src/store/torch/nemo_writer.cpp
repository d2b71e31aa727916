// The zip archive of torch.save with its pickle, at the end of a tar archive.

#include "src/store/torch/nemo_writer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/hash.hpp"
#include "src/core/protobuf.hpp"
#include "src/store/weight_file.hpp"

namespace choir {
namespace {

using protobuf::put_little_endian;
using namespace std::string_view_literals;

std::string_view torch_storage(Encoding encoding) {
  switch (encoding) {
    case Encoding::f64:
      return "DoubleStorage";
    case Encoding::f32:
      return "FloatStorage";
    case Encoding::f16:
      return "HalfStorage";
    case Encoding::bf16:
      return "BFloat16Storage";
    case Encoding::i64:
      return "LongStorage";
    default:
      CHOIR_CHECK(false, "torch has no storages of {} here", name_of(encoding));
  }
}

/// An OrderedDict of contiguous tensors as a pickle of protocol 2; tensor i has storage i.
class StateDictPickle {
 public:
  explicit StateDictPickle(const std::vector<TensorEntry>& tensors) {
    bytes_ = "\x80\x02"sv;
    put_empty_dict();
    bytes_ += '(';
    for (std::size_t i = 0; i < tensors.size(); ++i) put(tensors[i], std::to_string(i));
    bytes_ += "u."sv;
  }
  std::string take() { return std::move(bytes_); }

 private:
  void put_empty_dict() { bytes_ += "ccollections\nOrderedDict\n)R"sv; }
  void put_text(std::string_view text) {
    bytes_ += 'X';
    put_little_endian(bytes_, static_cast<std::uint32_t>(text.size()));
    bytes_ += text;
  }
  void put_number(std::int64_t number) {
    bytes_ += "\x8a\x08"sv;
    put_little_endian(bytes_, number);
  }
  void put(const TensorEntry& tensor, const std::string& key) {
    put_text(tensor.name);
    bytes_ += "ctorch._utils\n_rebuild_tensor_v2\n(("sv;
    put_text("storage");
    bytes_ += fmt::format("ctorch\n{}\n", torch_storage(tensor.encoding));
    put_text(key);
    put_text("cpu");
    put_number(tensor.shape.count());
    bytes_ += "tQ"sv;
    put_number(0);
    bytes_ += '(';
    for (int d = 0; d < tensor.shape.rank(); ++d) put_number(tensor.shape[d]);
    bytes_ += "t("sv;
    std::int64_t stride = tensor.shape.count();
    for (int d = 0; d < tensor.shape.rank(); ++d) {
      stride /= tensor.shape[d];
      put_number(stride);
    }
    bytes_ += "t\x89"sv;
    put_empty_dict();
    bytes_ += "tR"sv;
  }

  std::string bytes_;
};

template <class Word>
void put_words(std::string& to, std::initializer_list<Word> words) {
  for (const Word word : words) put_little_endian(to, word);
}

struct ZipRecord {
  std::string name;
  std::string text{};                ///< content of a member that is not a tensor
  std::int64_t bytes = 0;            ///< of the content
  std::int64_t begin = 0, data = 0;  ///< header and content, from the start of the archive
  std::uint32_t crc = 0;
};

constexpr std::int64_t kStorageAlignment = 64;
constexpr std::uint16_t kZipVersion = 45;  // the first with 64-bit sizes
constexpr std::uint16_t kFirstDay = 33;    // 1980-01-01
constexpr std::uint32_t kSeeExtraField = 0xffffffff;

/// The parts of the headers of a member that are the same in front of its content and in the
/// directory: version, flags, method, time, checksum and sizes.
void put_common(std::string& to, const ZipRecord& record) {
  put_words<std::uint16_t>(to, {kZipVersion, 0, 0, 0, kFirstDay});
  put_words<std::uint32_t>(to, {record.crc, kSeeExtraField, kSeeExtraField});
  put_little_endian(to, static_cast<std::uint16_t>(record.name.size()));
}

/// The header in front of the content, padded so that the content is aligned.
std::string local_header(const ZipRecord& record) {
  std::string header;
  put_little_endian(header, std::uint32_t{0x04034b50});
  put_common(header, record);
  constexpr std::int64_t kFixed = 30, kSizes = 20, kPadding = 4;
  const auto name = static_cast<std::int64_t>(record.name.size());
  const std::int64_t end = record.begin + kFixed + name + kSizes + kPadding;
  const std::int64_t padding = (kStorageAlignment - end % kStorageAlignment) % kStorageAlignment;
  put_little_endian(header, static_cast<std::uint16_t>(kSizes + kPadding + padding));
  header += record.name;
  put_words<std::uint16_t>(header, {1, 16});
  put_words<std::int64_t>(header, {record.bytes, record.bytes});
  header += "FB";  // the field that torch pads with
  put_little_endian(header, static_cast<std::uint16_t>(padding));
  header.append(static_cast<std::size_t>(padding), '\0');
  return header;
}

std::string directory_entry(const ZipRecord& record) {
  std::string entry;
  put_little_endian(entry, std::uint32_t{0x02014b50});
  put_little_endian(entry, kZipVersion);
  put_common(entry, record);
  // Sizes of the extra field and of a comment, number of the disk, attributes.
  put_words<std::uint16_t>(entry, {28, 0, 0, 0});
  put_words<std::uint32_t>(entry, {0, kSeeExtraField});  // attributes, the offset
  entry += record.name;
  put_words<std::uint16_t>(entry, {1, 24});
  put_words<std::int64_t>(entry, {record.bytes, record.bytes, record.begin});
  return entry;
}

/// The directory begins at `begin`.
std::string zip_directory(const std::vector<ZipRecord>& records, std::int64_t begin) {
  std::string bytes;
  for (const ZipRecord& record : records) bytes += directory_entry(record);
  const std::int64_t size = std::ssize(bytes), count = std::ssize(records);
  put_words<std::uint32_t>(bytes, {0x06064b50});
  put_words<std::int64_t>(bytes, {44});  // bytes that follow
  put_words<std::uint16_t>(bytes, {kZipVersion, kZipVersion});
  put_words<std::uint32_t>(bytes, {0, 0});  // disks
  put_words<std::int64_t>(bytes, {count, count, size, begin});
  put_words<std::uint32_t>(bytes, {0x07064b50, 0});
  put_words<std::int64_t>(bytes, {begin + size});
  put_words<std::uint32_t>(bytes, {1});
  // The record that every archive ends with has no room for numbers of 64 bits.
  put_words<std::uint32_t>(bytes, {0x06054b50});
  put_words<std::uint16_t>(bytes, {0, 0, 0xffff, 0xffff});
  put_words<std::uint32_t>(bytes, {kSeeExtraField, kSeeExtraField});
  put_words<std::uint16_t>(bytes, {0});
  return bytes;
}

/// Number of members in front of those of the tensors.
constexpr std::size_t kTexts = 3;

std::vector<ZipRecord> zip_records(const std::vector<TensorEntry>& tensors) {
  const std::string folder = "model_weights/";
  std::vector<ZipRecord> records;
  const auto add_text = [&](const std::string& name, const std::string& text) {
    records.push_back({.name = folder + name,
                       .text = text,
                       .bytes = std::ssize(text),
                       .crc = crc32(text.data(), text.size())});
  };
  add_text("data.pkl", StateDictPickle(tensors).take());
  add_text("byteorder", "little");
  add_text("version", "3\n");
  CHOIR_CHECK(records.size() == kTexts, "{} texts", records.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    records.push_back({.name = fmt::format("{}data/{}", folder, i), .bytes = tensors[i].bytes()});
  std::int64_t at = 0;
  for (ZipRecord& record : records) {
    record.begin = at;
    record.data = at + std::ssize(local_header(record));
    at = record.data + record.bytes;
  }
  return records;
}

constexpr std::int64_t kTarBlock = 512;

std::string octal_field(std::int64_t number, std::size_t digits) {
  return fmt::format("{:0{}o}", number, digits) + '\0';
}

/// The header of a file in a tar archive (POSIX ustar). Sizes from 8 GiB on are binary, as GNU tar
/// and Python write them.
std::string tar_header(const std::string& name, std::int64_t bytes) {
  const std::string path = "./" + name;
  CHOIR_CHECK(path.size() < 100, "a name of {} bytes in a tar archive", path.size());
  std::string header(kTarBlock, '\0');
  const auto put = [&](std::size_t at, std::string_view field) {
    header.replace(at, field.size(), field);
  };
  put(0, path);
  put(100, octal_field(0644, 7));
  for (const std::size_t at : {108u, 116u}) put(at, octal_field(0, 7));
  if (bytes < std::int64_t{1} << 33) {
    put(124, octal_field(bytes, 11));
  } else {
    header[124] = '\x80';
    for (std::size_t i = 0; i < 8; ++i)
      header[135 - i] = static_cast<char>(static_cast<std::uint64_t>(bytes) >> (8 * i));
  }
  put(136, octal_field(0, 11));
  put(148, "        ");
  header[156] = '0';
  put(257,
      "ustar\0"
      "00"sv);
  std::int64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, octal_field(sum, 6));
  return header;
}

std::int64_t whole_tar_blocks(std::int64_t bytes) {
  return (bytes + kTarBlock - 1) / kTarBlock * kTarBlock;
}

}  // namespace

struct NemoWriter::State {
  std::string front;               ///< of the tar archive, to the begin of the zip archive
  std::vector<ZipRecord> records;  ///< texts, then tensors in their order
  std::int64_t directory = 0;      ///< begin of the directory in the zip archive
  std::int64_t bytes = 0;          ///< of the whole file
  std::vector<std::uint32_t> checksums;
  PendingFile file;

  std::int64_t zip_begin() const { return std::ssize(front); }
  void put(std::string_view text, std::int64_t offset_in_zip) {
    file.write_at(text.data(), std::ssize(text), zip_begin() + offset_in_zip);
  }
};

NemoWriter::NemoWriter(const std::string& path, const std::vector<NemoMember>& members,
                       std::vector<TensorEntry> tensors)
    : TensorWriter(path, std::move(tensors)),
      state_(new State{{}, zip_records(this->tensors()), 0, 0, {}, PendingFile(path)}) {
  for (const NemoMember& member : members) {
    state_->front += tar_header(member.name, std::ssize(member.bytes)) + member.bytes;
    state_->front.resize(static_cast<std::size_t>(whole_tar_blocks(std::ssize(state_->front))));
  }
  const ZipRecord& last = state_->records.back();
  state_->directory = last.data + last.bytes;
  const std::int64_t zip =
      state_->directory + std::ssize(zip_directory(state_->records, state_->directory));
  state_->front += tar_header("model_weights.ckpt", zip);
  state_->bytes = state_->zip_begin() + whole_tar_blocks(zip) + 2 * kTarBlock;
  state_->checksums.resize(this->tensors().size());
}

NemoWriter::~NemoWriter() = default;

void NemoWriter::lay_out() {
  state_->file.create(state_->front, state_->bytes);
}

void NemoWriter::write_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                               const std::byte* from) {
  const Encoding encoding = tensors()[index].encoding;
  const std::int64_t offset = encoded_bytes(encoding, first),
                     bytes = encoded_bytes(encoding, count);
  const ZipRecord& record = state_->records[kTexts + index];
  state_->file.write_at(from, bytes, state_->zip_begin() + record.data + offset);
  const std::uint32_t crc = crc32(from, static_cast<std::size_t>(bytes));
  state_->checksums[index] ^=
      crc32_combine(crc, 0, static_cast<std::uint64_t>(record.bytes - offset - bytes));
}

void NemoWriter::sync() {
  state_->file.sync();
}

std::vector<std::uint32_t>& NemoWriter::checksums() {
  return state_->checksums;
}

/// Headers and directory have the checksums of the tensors, which are known only now.
void NemoWriter::rename_files() {
  for (std::size_t i = 0; i < state_->checksums.size(); ++i)
    state_->records[kTexts + i].crc = state_->checksums[i];
  for (const ZipRecord& record : state_->records)
    state_->put(local_header(record) + record.text, record.begin);
  state_->put(zip_directory(state_->records, state_->directory), state_->directory);
  state_->file.sync();
  state_->file.rename();
}

}  // namespace choir
