#include "src/data/text/token_file.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"

namespace choir {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::array<char, 8> kMagic{'C', 'H', 'O', 'I', 'R', 'T', 'O', 'K'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kEndiannessMark = 0x01020304u;
constexpr const char* kPrepareAgain = "prepare the data again with 'choir prepare text'";

struct RawHeader {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t endianness = kEndiannessMark;
  std::uint32_t token_bytes = 2;
  std::uint32_t vocab_size = 0;
  std::uint64_t count = 0;
  std::uint64_t vocab_hash = 0;
  std::uint32_t payload_crc = 0;
  std::array<std::uint32_t, 4> reserved{};
  std::uint32_t header_crc = 0;

  std::uint32_t checksum() const { return crc32c(this, offsetof(RawHeader, header_crc)); }
};
static_assert(sizeof(RawHeader) == kTokenFileHeaderBytes);

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw DataError(fmt::format("token file '{}' {}", path, what), kPrepareAgain);
}

void check_fields(const std::string& path, const RawHeader& raw) {
  if (raw.magic != kMagic) {
    throw DataError(fmt::format("'{}' is not a native token file (no CHOIRTOK at its start)", path),
                    "raw uint16 tokens must be named .bin; text goes through 'choir prepare text'");
  }
  if (raw.endianness != kEndiannessMark)
    refuse(path, "was written on a machine of the other byte order");
  if (raw.version != kVersion)
    refuse(path, fmt::format("has version {}, this program reads {}", raw.version, kVersion));
  if (raw.checksum() != raw.header_crc) {
    refuse(path, fmt::format("has a corrupt header (crc32c {:08x}, stored {:08x})", raw.checksum(),
                             raw.header_crc));
  }
  if (raw.token_bytes != 2 && raw.token_bytes != 4)
    refuse(path, fmt::format("has {} bytes per token; 2 or 4 are known", raw.token_bytes));
}

}  // namespace

int token_bytes_for(std::int64_t vocab_size) {
  return vocab_size <= 65535 ? 2 : 4;
}

TokenFileHeader read_token_file_header(const std::string& path) {
  const PosixFile file = PosixFile::for_reading(path);
  const std::int64_t size = file.size();
  if (size == 0) refuse(path, "is empty");
  RawHeader raw;
  if (size < kTokenFileHeaderBytes)
    refuse(path, fmt::format("is truncated: {} bytes, its header alone has {}", size,
                             kTokenFileHeaderBytes));
  file.read_at(&raw, sizeof raw, 0);
  check_fields(path, raw);
  const auto payload = static_cast<std::uint64_t>(size - kTokenFileHeaderBytes);
  if (payload / raw.token_bytes < raw.count) {
    refuse(path, fmt::format("is truncated: the header promises {} tokens, {} are there", raw.count,
                             payload / raw.token_bytes));
  }
  if (payload != raw.count * raw.token_bytes)
    refuse(path, fmt::format("has {} bytes after its {} tokens",
                             payload - raw.count * raw.token_bytes, raw.count));
  if (raw.count == 0) refuse(path, "holds no tokens");
  return {static_cast<int>(raw.token_bytes), raw.vocab_size, raw.count, raw.vocab_hash,
          raw.payload_crc};
}

struct TokenFileWriter::State {
  std::string path;
  std::string temporary;
  RawHeader header;
  std::vector<char> packed;
  std::optional<PosixFile> file;
};

TokenFileWriter::TokenFileWriter(std::string path, std::int64_t vocab_size,
                                 std::uint64_t vocab_hash)
    : state_(std::make_unique<State>()) {
  state_->temporary = path + ".tmp";
  state_->path = std::move(path);
  state_->header.token_bytes = static_cast<std::uint32_t>(token_bytes_for(vocab_size));
  state_->header.vocab_size = static_cast<std::uint32_t>(vocab_size);
  state_->header.vocab_hash = vocab_hash;
  state_->file.emplace(PosixFile::for_writing(state_->temporary));
}

TokenFileWriter::TokenFileWriter(TokenFileWriter&&) noexcept = default;

TokenFileWriter::~TokenFileWriter() {
  if (state_ == nullptr || !state_->file) return;
  std::error_code ignored;
  std::filesystem::remove(state_->temporary, ignored);
}

std::int64_t TokenFileWriter::count() const {
  return static_cast<std::int64_t>(state_->header.count);
}

void TokenFileWriter::append(std::span<const std::int32_t> tokens) {
  State& s = *state_;
  s.packed.resize(tokens.size() * s.header.token_bytes);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int32_t id = tokens[i];
    if (id < 0 || static_cast<std::uint32_t>(id) >= s.header.vocab_size)
      throw DataError(fmt::format("token id {} outside the vocabulary of {} while writing '{}'", id,
                                  s.header.vocab_size, s.path));
    std::memcpy(s.packed.data() + i * s.header.token_bytes, &id, s.header.token_bytes);
  }
  const auto offset = static_cast<std::int64_t>(s.header.count * s.header.token_bytes);
  s.file->write_at(s.packed.data(), s.packed.size(), kTokenFileHeaderBytes + offset);
  s.header.payload_crc = crc32c(s.packed.data(), s.packed.size(), s.header.payload_crc);
  s.header.count += tokens.size();
}

void TokenFileWriter::finish() {
  State& s = *state_;
  CHOIR_CHECK(s.file.has_value(), "'{}' is finished already", s.path);
  s.header.header_crc = s.header.checksum();
  s.file->write_at(&s.header, sizeof s.header, 0);
  s.file->sync();
  std::error_code failure;
  std::filesystem::rename(s.temporary, s.path, failure);
  if (failure)
    throw StorageError(
        fmt::format("cannot rename '{}' to '{}': {}", s.temporary, s.path, failure.message()));
  s.file.reset();
}

namespace {

constexpr std::array<char, 9> kIndexMagic{'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr int kCodeInt32 = 4, kCodeUint16 = 8;

[[noreturn]] void refuse_index(const std::string& path, const std::string& what) {
  throw DataError(fmt::format("Megatron index '{}' {}", path, what),
                  "build the pair again with Megatron-LM's preprocess_data.py");
}

template <class T>
T take(const PosixFile& file, std::int64_t offset) {
  T value;
  file.read_at(&value, sizeof value, offset);
  return value;
}

void check_sequences(const PosixFile& index, std::int64_t sequences, int token_bytes,
                     std::int64_t bin_bytes) {
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(sequences));
  std::vector<std::int64_t> pointers(lengths.size());
  index.read_at(lengths.data(), lengths.size() * 4, kIndexFixedBytes);
  index.read_at(pointers.data(), pointers.size() * 8, kIndexFixedBytes + 4 * sequences);
  std::int64_t expected = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || pointers[i] != expected)
      refuse_index(index.path(),
                   fmt::format("is damaged: sequence {} starts at byte {}, expected {}", i,
                               pointers[i], expected));
    expected += static_cast<std::int64_t>(lengths[i]) * token_bytes;
  }
  if (expected != bin_bytes)
    refuse_index(index.path(),
                 fmt::format("accounts for {} bytes, the .bin file has {}", expected, bin_bytes));
}

/// Multimodal data sets have a byte for each sequence behind the rest of their index: 0 is text.
void require_mode_of_text(const PosixFile& index, std::int64_t modes) {
  std::string bytes(static_cast<std::size_t>(index.size() - modes), '\0');
  index.read_at(bytes.data(), bytes.size(), modes);
  const std::size_t other = bytes.find_first_not_of('\0');
  if (other != std::string::npos)
    throw DataError(fmt::format("Megatron index '{}' belongs to a multimodal data set: sequence {} "
                                "has mode {}, and 0 is text",
                                index.path(), other, static_cast<int>(bytes[other])),
                    "write its text alone as a pair with Megatron-LM (an IndexedDatasetBuilder "
                    "without multimodal=True)");
}

}  // namespace

int read_megatron_index(const std::string& index_path, const std::string& bin_path) {
  const PosixFile index = PosixFile::for_reading(index_path);
  if (index.size() < kIndexFixedBytes) refuse_index(index_path, "is truncated");
  if (take<std::array<char, 9>>(index, 0) != kIndexMagic)
    refuse_index(index_path, "has no MMIDIDX mark");
  if (const auto version = take<std::uint64_t>(index, 9); version != 1)
    refuse_index(index_path, fmt::format("has version {}, 1 is known", version));
  const int code = take<std::uint8_t>(index, 17);
  if (code != kCodeInt32 && code != kCodeUint16)
    refuse_index(index_path,
                 fmt::format("has type code {}; 4 (int32) and 8 (uint16) are token types", code));
  const auto sequences = take<std::uint64_t>(index, kIndexSequences);
  const auto documents = take<std::uint64_t>(index, kIndexDocuments);
  const auto size = static_cast<std::uint64_t>(index.size());
  const std::uint64_t text = kIndexFixedBytes + 12 * sequences + 8 * documents;
  if (sequences > 0 && sequences <= size && documents <= size && size == text + sequences)
    require_mode_of_text(index, static_cast<std::int64_t>(text));
  else if (sequences > size || documents > size || size != text)
    refuse_index(index_path,
                 fmt::format("has {} bytes, but its {} sequences and {} documents need {}", size,
                             sequences, documents, text));
  const int token_bytes = code == kCodeUint16 ? 2 : 4;
  const PosixFile bin = PosixFile::for_reading(bin_path);
  check_sequences(index, static_cast<std::int64_t>(sequences), token_bytes, bin.size());
  return token_bytes;
}

}  // namespace choir
