#include "src/data/audio/byte_source.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <optional>
#include <utility>

namespace choir {

std::int64_t ByteSource::read_at(std::int64_t offset, void* to, std::int64_t count) const {
  count = std::clamp<std::int64_t>(count, 0, std::max<std::int64_t>(0, size() - offset));
  if (count == 0) return 0;
  const std::int64_t got = read_original(offset, to, count);
  for (const Repair& repair : repairs_) {
    const std::int64_t first = std::max(offset, repair.offset);
    const std::int64_t end = std::min(offset + got, repair.offset + std::ssize(repair.bytes));
    if (first < end)
      std::memcpy(static_cast<char*>(to) + (first - offset),
                  repair.bytes.data() + (first - repair.offset),
                  static_cast<std::size_t>(end - first));
  }
  return got;
}

namespace {

class FileBytes final : public ByteSource {
 public:
  explicit FileBytes(const std::string& path)
      : file_(PosixFile::for_reading(path)), size_(file_.size()) {}
  std::int64_t size() const override { return size_; }

 private:
  std::int64_t read_original(std::int64_t offset, void* to, std::int64_t count) const override {
    file_.read_at(to, static_cast<std::size_t>(count), offset);
    return count;
  }
  PosixFile file_;
  std::int64_t size_;
};

class MemoryBytes final : public ByteSource {
 public:
  explicit MemoryBytes(std::vector<char> bytes) : bytes_(std::move(bytes)) {}
  std::int64_t size() const override { return std::ssize(bytes_); }

 private:
  std::int64_t read_original(std::int64_t offset, void* to, std::int64_t count) const override {
    std::memcpy(to, bytes_.data() + offset, static_cast<std::size_t>(count));
    return count;
  }
  std::vector<char> bytes_;
};

class BytesBehind final : public ByteSource {
 public:
  BytesBehind(std::unique_ptr<ByteSource> source, std::int64_t offset)
      : source_(std::move(source)), offset_(std::min(offset, source_->size())) {}
  std::int64_t size() const override { return source_->size() - offset_; }

 private:
  std::int64_t read_original(std::int64_t offset, void* to, std::int64_t count) const override {
    return source_->read_at(offset_ + offset, to, count);
  }
  std::unique_ptr<ByteSource> source_;
  std::int64_t offset_;
};

template <class T>
T number_at(const ByteSource& source, std::int64_t offset) {
  std::array<unsigned char, sizeof(T)> bytes{};
  source.read_at(offset, bytes.data(), std::ssize(bytes));
  T value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = static_cast<T>(value << 8 | bytes[i]);
  return value;
}
template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xFF);
  return bytes;
}
std::uint64_t big_endian_at(const ByteSource& source, std::int64_t offset) {
  const auto reversed = number_at<std::uint64_t>(source, offset);
  std::uint64_t value = 0;
  for (int b = 0; b < 8; ++b) value = value << 8 | (reversed >> (8 * b) & 0xFF);
  return value;
}
std::string name_at(const ByteSource& source, std::int64_t offset) {
  std::string name(4, '\0');
  source.read_at(offset, name.data(), 4);
  return name;
}

/// A chunk of a RIFF file: four letters, the size of its body, and the body, padded to 2 bytes.
struct Chunk {
  std::string name;
  std::int64_t body = 0, size = 0;
  std::int64_t next() const { return body + size + (size & 1); }
};
std::optional<Chunk> chunk_at(const ByteSource& source, std::int64_t offset) {
  if (offset + 8 > source.size()) return std::nullopt;
  Chunk chunk{.name = name_at(source, offset),
              .body = offset + 8,
              .size = number_at<std::uint32_t>(source, offset + 4)};
  for (const unsigned char c : chunk.name)
    if (std::isprint(c) == 0) return std::nullopt;
  return chunk;
}
/// True if whole chunks fill the rest of the file.
bool chunks_fill(const ByteSource& source, std::int64_t offset) {
  while (offset < source.size()) {
    const auto chunk = chunk_at(source, offset);
    if (!chunk || chunk->body + chunk->size > source.size()) return false;
    offset = chunk->next();
  }
  return true;
}

struct WavHeader {
  std::optional<Chunk> format, data, sizes;  ///< sizes: ds64 of RF64
};
WavHeader header_of(const ByteSource& source) {
  WavHeader header;
  for (auto chunk = chunk_at(source, 12); chunk; chunk = chunk_at(source, chunk->next())) {
    if (chunk->name == "fmt ") header.format = chunk;
    if (chunk->name == "ds64") header.sizes = chunk;
    if (chunk->name == "data") {
      header.data = chunk;
      break;
    }
  }
  return header;
}

/// A writer that cannot seek back leaves 0 or the largest number as the size of the data.
void repair_length(ByteSource& source, const WavHeader& header) {
  constexpr std::int64_t kMost = 0xFFFFFFFF;
  const std::int64_t follows = source.size() - header.data->body, size = header.data->size;
  if (follows == 0) return;
  if (header.sizes && header.sizes->size >= 16) {
    const auto wide = number_at<std::uint64_t>(source, header.sizes->body + 8);
    if (size == kMost && (wide == 0 || wide > static_cast<std::uint64_t>(follows)))
      source.repair(header.sizes->body + 8,
                    little_endian<std::uint64_t>(static_cast<std::uint64_t>(follows)));
  } else if (size == 0 && !chunks_fill(source, header.data->body)) {
    source.repair(header.data->body - 4, little_endian<std::uint32_t>(std::min(follows, kMost)));
    source.repair(4, little_endian<std::uint32_t>(std::min(source.size() - 8, kMost)));
  }
}

/// The frames of a data chunk that reaches beyond the end of the file; 0 for any other. Sizes near
/// the largest numbers are those of writers that did not know the length.
std::int64_t promised_frames(const ByteSource& source, const WavHeader& header) {
  constexpr std::int64_t kUnknown = 0x7FFF0000;
  std::int64_t size = header.data->size;
  const bool wide = header.sizes && header.sizes->size >= 16;
  if (wide) size = number_at<std::int64_t>(source, header.sizes->body + 8);
  const int block = number_at<std::uint16_t>(source, header.format->body + 12);
  const bool known = size > 0 && (wide ? size < std::int64_t{1} << 56 : size < kUnknown);
  if (!known || block == 0 || size <= source.size() - header.data->body) return 0;
  return number_at<std::uint16_t>(source, header.format->body) == 0x11 ? 0 : size / block;
}

/// True if some sample uses the bits below its upper `bits`, and none those above its lower `bits`:
/// the samples stand at the lower end of their containers of `width` bytes.
bool stand_low(const ByteSource& source, const Chunk& data, int width, int bits) {
  const std::int64_t end = std::min(source.size(), data.body + data.size);
  std::vector<unsigned char> block(static_cast<std::size_t>(width) << 16);
  const int unused = 8 * width - bits;
  bool low = false;
  for (std::int64_t at = data.body; at + width <= end; at += std::ssize(block)) {
    const std::int64_t got =
        source.read_at(at, block.data(), std::min(std::ssize(block), end - at)) / width;
    for (std::int64_t i = 0; i < got; ++i) {
      std::uint32_t sample = 0;
      for (int b = width; b-- > 0;)
        sample = sample << 8 | block[static_cast<std::size_t>(i * width + b)];
      const auto value = static_cast<std::int32_t>(sample << (32 - 8 * width)) >> (32 - 8 * width);
      if (value >> (bits - 1) != 0 && value >> (bits - 1) != -1) return false;
      low = low || (sample & ((1u << unused) - 1)) != 0;
    }
  }
  return low;
}

/// Repairs the bits of a sample whose container is wider.
HeaderFacts repair_bits(ByteSource& source, const WavHeader& header) {
  constexpr std::uint16_t kPcm = 1, kExtensible = 0xFFFE;
  const std::int64_t at = header.format->body;
  auto tag = number_at<std::uint16_t>(source, at);
  const bool extended = tag == kExtensible && header.format->size >= 40;
  if (extended) tag = number_at<std::uint16_t>(source, at + 24);  // the first bytes of the GUID
  if (tag != kPcm) return {};
  const int channels = number_at<std::uint16_t>(source, at + 2);
  const int block = number_at<std::uint16_t>(source, at + 12);
  const int bits = number_at<std::uint16_t>(source, at + 14);
  const int told = extended ? number_at<std::uint16_t>(source, at + 18) : 0;
  const int valid = told > 0 && told < bits ? told : bits;
  if (channels == 0 || bits == 0) return {};
  if (block % channels != 0 || bits > 8 * (block / channels))
    return {.fault = fmt::format("its header gives {} bytes to {} samples of {} bits", block,
                                 channels, bits)};
  const int width = block / channels;
  if (valid == 8 * width || width < 2 || width > 4) return {};
  if (bits != 8 * width)
    source.repair(at + 14, little_endian<std::uint16_t>(static_cast<std::uint16_t>(8 * width)));
  if (extended)
    source.repair(at + 18, little_endian<std::uint16_t>(static_cast<std::uint16_t>(8 * width)));
  if (!stand_low(source, *header.data, width, valid)) return {};
  return {.gain = static_cast<float>(1 << (8 * width - valid)), .fault = ""};
}

/// The last chunk of a CAF file may have the size -1: it reaches to the end.
void repair_caf(ByteSource& source) {
  for (std::int64_t at = 8; at + 12 <= source.size();) {
    const auto size = static_cast<std::int64_t>(big_endian_at(source, at + 4));
    const std::int64_t follows = source.size() - (at + 12);
    if (name_at(source, at) == "data" && size == -1) {
      std::string bytes = little_endian<std::int64_t>(follows);
      std::reverse(bytes.begin(), bytes.end());
      source.repair(at + 4, bytes);
    }
    if (size < 0 || size > follows) return;
    at += 12 + size;
  }
}

}  // namespace

std::unique_ptr<ByteSource> bytes_of_file(const std::string& path) {
  return std::make_unique<FileBytes>(path);
}

std::unique_ptr<ByteSource> bytes_in_memory(std::vector<char> bytes) {
  return std::make_unique<MemoryBytes>(std::move(bytes));
}

std::unique_ptr<ByteSource> bytes_behind(std::unique_ptr<ByteSource> source, std::int64_t offset) {
  return std::make_unique<BytesBehind>(std::move(source), offset);
}

HeaderFacts repair_header(ByteSource& source) {
  const std::string magic = name_at(source, 0);
  if (magic == "caff") repair_caf(source);
  if ((magic != "RIFF" && magic != "RF64" && magic != "BW64") || name_at(source, 8) != "WAVE")
    return {};
  WavHeader header = header_of(source);
  if (!header.data || !header.format || header.format->size < 16) return {};
  const std::int64_t promised = promised_frames(source, header);
  repair_length(source, header);
  if (header.data->size == 0) header.data->size = source.size() - header.data->body;
  HeaderFacts facts = repair_bits(source, header);
  facts.promised = promised;
  return facts;
}

}  // namespace choir
