#include "src/data/speech/label_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <limits>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/data/text/token_file.hpp"

namespace choir {
namespace {

// Format of labels.NAME.bin, little endian:
//   byte  0  "CHOIRLBL"
//         8  u32 version (1)             12  u32 endianness mark 0x01020304
//        16  u64 hash of the catalog     24  u64 hash of the tokenizer
//        32  u64 size of the vocabulary  40  u64 utterances      48  u64 ids
//        56  u32 crc32c of the payload   60  u32 crc32c of bytes 0..59
//        64  i32 number of ids of every utterance (-1: bad), then the ids of all, u16 when the
//            vocabulary has at most 65,535 entries, else i32
static_assert(std::endian::native == std::endian::little, "label files are little-endian");

constexpr std::array<char, 8> kMagic{'C', 'H', 'O', 'I', 'R', 'L', 'B', 'L'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kEndiannessMark = 0x01020304u;
constexpr std::int32_t kBad = -1;

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t endianness = kEndiannessMark;
  std::uint64_t catalog_hash = 0;
  std::uint64_t tokenizer_hash = 0;
  std::uint64_t vocab_size = 0;
  std::uint64_t utterances = 0;
  std::uint64_t ids = 0;
  std::uint32_t payload_crc = 0;
  std::uint32_t header_crc = 0;

  std::uint32_t checksum() const { return crc32c(this, offsetof(Header, header_crc)); }
};
static_assert(sizeof(Header) == 64);

[[noreturn]] void refuse_labels(const std::string& source, const std::string& what) {
  throw DataError(fmt::format("label file '{}' {}", source, what),
                  "write it again with 'choir prepare tokens'");
}

// Bounds the counts by the bytes that are present, so that those of a damaged header cannot
// overflow.
void check_length(const Header& header, std::size_t payload, const std::string& source) {
  const std::uint64_t most = payload;
  const auto id_bytes =
      static_cast<std::uint64_t>(token_bytes_for(static_cast<std::int64_t>(header.vocab_size)));
  const bool fits = header.utterances <= most && header.ids <= most &&
                    header.vocab_size <= std::numeric_limits<std::int32_t>::max();
  if (!fits || header.utterances * 4 + header.ids * id_bytes != most)
    refuse_labels(source, fmt::format("is truncated or too long: {} bytes follow the header of {} "
                                      "utterances with {} ids",
                                      payload, header.utterances, header.ids));
}

Header read_header(std::string_view image, const std::string& source) {
  Header header;
  if (image.size() < sizeof header)
    refuse_labels(source, fmt::format("is truncated: {} bytes, its header alone has {}",
                                      image.size(), sizeof header));
  std::memcpy(&header, image.data(), sizeof header);
  if (header.magic != kMagic) refuse_labels(source, "is not one (no CHOIRLBL at its start)");
  if (header.endianness != kEndiannessMark)
    refuse_labels(source, "was written on a machine of the other byte order");
  if (header.version != kVersion)
    refuse_labels(source,
                  fmt::format("has version {}, this program reads {}", header.version, kVersion));
  if (header.checksum() != header.header_crc)
    refuse_labels(source, fmt::format("has a corrupt header (crc32c {:08x}, stored {:08x})",
                                      header.checksum(), header.header_crc));
  const std::string_view payload = image.substr(sizeof header);
  check_length(header, payload.size(), source);
  if (const std::uint32_t crc = crc32c(payload.data(), payload.size()); crc != header.payload_crc)
    refuse_labels(
        source, fmt::format("is damaged (crc32c {:08x}, stored {:08x})", crc, header.payload_crc));
  return header;
}

std::string pack(Header header, const std::vector<std::int32_t>& counts,
                 const std::vector<std::int32_t>& ids) {
  const auto id_bytes =
      static_cast<std::size_t>(token_bytes_for(static_cast<std::int64_t>(header.vocab_size)));
  std::string image(sizeof header + counts.size() * 4 + ids.size() * id_bytes, '\0');
  char* at = image.data() + sizeof header;
  if (!counts.empty()) std::memcpy(at, counts.data(), counts.size() * 4);
  at += counts.size() * 4;
  for (const std::int32_t id : ids) {
    std::memcpy(at, &id, id_bytes);
    at += id_bytes;
  }
  header.utterances = counts.size();
  header.ids = ids.size();
  header.payload_crc = crc32c(image.data() + sizeof header, image.size() - sizeof header);
  header.header_crc = header.checksum();
  std::memcpy(image.data(), &header, sizeof header);
  return image;
}

void check_ids(const std::vector<std::int32_t>& ids, std::int64_t vocab_size,
               std::int64_t utterance) {
  for (const std::int32_t id : ids)
    if (id < 0 || id >= vocab_size)
      throw DataError(fmt::format("token id {} of utterance {} is outside the vocabulary of {}", id,
                                  utterance, vocab_size));
}

std::string image_of(std::uint64_t catalog_hash, std::uint64_t tokenizer_hash,
                     std::int64_t vocab_size,
                     const std::vector<std::vector<std::int32_t>>& utterances,
                     const std::vector<bool>& bad) {
  CHOIR_CHECK(utterances.size() == bad.size(), "{} utterances, {} marks", utterances.size(),
              bad.size());
  Header header;
  header.catalog_hash = catalog_hash;
  header.tokenizer_hash = tokenizer_hash;
  header.vocab_size = static_cast<std::uint64_t>(vocab_size);
  std::vector<std::int32_t> counts, ids;
  counts.reserve(utterances.size());
  for (std::size_t i = 0; i < utterances.size(); ++i) {
    if (bad[i]) {
      counts.push_back(kBad);
      continue;
    }
    check_ids(utterances[i], vocab_size, static_cast<std::int64_t>(i));
    counts.push_back(static_cast<std::int32_t>(utterances[i].size()));
    ids.insert(ids.end(), utterances[i].begin(), utterances[i].end());
  }
  return pack(header, counts, ids);
}

std::uint64_t catalog_hash_of(std::string_view image) {
  Header header;
  std::memcpy(&header, image.data(), sizeof header);
  return header.catalog_hash;
}

}  // namespace

std::string own_labels_name(const std::string& name, std::uint64_t tokenizer_hash) {
  return fmt::format("{}-{:016x}", name, tokenizer_hash);
}

LabelFile LabelFile::none(std::int64_t utterances) {
  LabelFile labels;
  labels.offsets_.resize(static_cast<std::size_t>(utterances) + 1, 0);
  labels.bad_.resize(static_cast<std::size_t>(utterances), false);
  return labels;
}

std::string LabelFile::path(const std::string& folder, const std::string& name) {
  const bool legal = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  if (!legal)
    throw DeckError(fmt::format("'{}' cannot name labels", name),
                    "use letters, digits, '_' and '-', such as 'char' or 'bpe_128'");
  return fmt::format("{}/labels.{}.bin", folder, name);
}

LabelFile LabelFile::open(const std::string& folder, const std::string& name,
                          std::uint64_t catalog_hash) {
  const std::string source = path(folder, name);
  if (!std::filesystem::exists(source))
    throw DataError(
        fmt::format("label file missing: {}", source),
        fmt::format("write them with 'choir prepare tokens {} --tokenizer FILE --name {}'", folder,
                    name));
  const std::string image = read_whole_file(source, kMostBinaryMiB);
  LabelFile labels = from_image(image, source);
  if (catalog_hash_of(image) != catalog_hash)
    refuse_labels(source, "belongs to another state of the packed audio beside it");
  return labels;
}

std::optional<LabelFile> LabelFile::find(const std::string& folder, const std::string& name,
                                         std::uint64_t catalog_hash, std::uint64_t tokenizer_hash) {
  if (!std::filesystem::exists(path(folder, name))) return std::nullopt;
  try {
    LabelFile labels = open(folder, name, catalog_hash);
    if (labels.tokenizer_hash() == tokenizer_hash) return labels;
  } catch (const DataError&) {  // the labels are made again
  }
  return std::nullopt;
}

LabelFile LabelFile::made(std::uint64_t tokenizer_hash, std::int64_t vocab_size,
                          const std::vector<std::vector<std::int32_t>>& utterances,
                          const std::vector<bool>& bad) {
  return from_image(image_of(0, tokenizer_hash, vocab_size, utterances, bad), "made in memory");
}

void LabelFile::write(const std::string& folder, const std::string& name,
                      std::uint64_t catalog_hash, std::uint64_t tokenizer_hash,
                      std::int64_t vocab_size,
                      const std::vector<std::vector<std::int32_t>>& utterances,
                      const std::vector<bool>& bad) {
  write_whole_file(path(folder, name),
                   image_of(catalog_hash, tokenizer_hash, vocab_size, utterances, bad));
}

std::span<const std::int32_t> LabelFile::operator[](std::int64_t i) const {
  const auto u = static_cast<std::size_t>(i);
  return std::span(ids_).subspan(static_cast<std::size_t>(offsets_[u]),
                                 static_cast<std::size_t>(offsets_[u + 1] - offsets_[u]));
}

std::string LabelFile::serialise() const {
  Header header;
  header.tokenizer_hash = tokenizer_hash_;
  header.vocab_size = static_cast<std::uint64_t>(vocab_size_);
  std::vector<std::int32_t> counts;
  for (std::int64_t i = 0; i < size(); ++i)
    counts.push_back(bad(i) ? kBad : static_cast<std::int32_t>((*this)[i].size()));
  return pack(header, counts, ids_);
}

LabelFile LabelFile::deserialise(std::string_view bytes) {
  return from_image(bytes, "received from another rank");
}

LabelFile LabelFile::from_image(std::string_view image, const std::string& source) {
  const Header header = read_header(image, source);
  LabelFile labels;
  labels.vocab_size_ = static_cast<std::int64_t>(header.vocab_size);
  labels.tokenizer_hash_ = header.tokenizer_hash;
  const char* at = image.data() + sizeof header;
  for (std::uint64_t i = 0; i < header.utterances; ++i, at += 4) {
    std::int32_t count = 0;
    std::memcpy(&count, at, sizeof count);
    if (count < kBad) refuse_labels(source, fmt::format("gives utterance {} {} ids", i, count));
    labels.bad_.push_back(count == kBad);
    labels.offsets_.push_back(labels.offsets_.back() + std::max(count, 0));
  }
  if (labels.offsets_.back() != static_cast<std::int64_t>(header.ids))
    refuse_labels(source, "has lengths that do not add up");
  const auto id_bytes = static_cast<std::size_t>(token_bytes_for(labels.vocab_size_));
  labels.ids_.resize(header.ids, 0);
  for (std::int32_t& id : labels.ids_) {
    std::memcpy(&id, at, id_bytes);
    at += id_bytes;
  }
  for (const std::int32_t id : labels.ids_)
    if (id < 0 || id >= labels.vocab_size_) refuse_labels(source, "has ids outside its vocabulary");
  return labels;
}

}  // namespace choir
