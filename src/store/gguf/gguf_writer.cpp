#include <fmt/core.h>

#include "choir/core/error.hpp"
#include "choir/store/gguf/gguf.hpp"
#include "src/store/gguf/gguf_format.hpp"
#include "src/store/pending_file.hpp"

namespace choir {
namespace {

using namespace gguf;

template <class T>
void put(std::string& to, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    put(to, static_cast<std::uint64_t>(value.size()));
    to += value;
  } else if constexpr (std::is_same_v<T, bool>) {
    to += static_cast<char>(value ? 1 : 0);
  } else {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
}

template <class T>
void put(std::string& to, const std::vector<T>& items) {
  put(to, static_cast<std::uint64_t>(items.size()));
  for (const T& item : items) put(to, item);
}

void put(std::string& to, const std::monostate&) {
  CHOIR_CHECK(to.empty(), "an array of arrays");
}

void put(std::string& to, const GgufArray& array) {
  put(to, static_cast<std::uint32_t>(array.index()));
  std::visit([&](const auto& items) { put(to, items); }, array);
}

std::int64_t alignment_of(const GgufMetadata& metadata) {
  const auto* alignment = metadata.get<std::uint32_t>(kAlignmentKey);
  return alignment == nullptr ? kAlignment : *alignment;
}

void put_record(std::string& to, const TensorEntry& entry, std::int64_t offset) {
  const auto type = tensor_type(entry.encoding);
  const Shape& shape = entry.shape;
  CHOIR_CHECK(type.has_value(), "{} in GGUF", name_of(entry.encoding));
  CHOIR_CHECK(shape.rank() == 0 || shape.back() % block_elements(entry.encoding) == 0,
              "rows of {} {} are no whole blocks", entry.name, to_string(shape));
  if (std::ssize(entry.name) >= kLongestName || shape.rank() > kMostDims)
    throw StorageError(
        fmt::format("GGUF cannot hold tensor '{}' {}: names have less than {} "
                    "bytes, shapes at most {} dims",
                    entry.name, to_string(shape), kLongestName, kMostDims));
  put(to, entry.name);
  put(to, static_cast<std::uint32_t>(shape.rank()));
  for (int dim = shape.rank() - 1; dim >= 0; --dim) put(to, static_cast<std::uint64_t>(shape[dim]));
  put(to, *type);
  put(to, static_cast<std::uint64_t>(offset));
}

}  // namespace

struct GgufWriter::State {
  PendingFile file;
  std::string header;                 // including its padding
  std::vector<std::int64_t> offsets;  // positions of the tensors in the file
  std::int64_t bytes = 0;
};

GgufWriter::GgufWriter(const std::string& path, GgufMetadata metadata,
                       std::vector<TensorEntry> tensors)
    : TensorWriter(path, std::move(tensors)), state_(new State{PendingFile(path), {}, {}}) {
  const std::int64_t alignment = alignment_of(metadata);
  std::string& header = state_->header;
  put(header, kMagic);
  put(header, kVersion);
  put(header, static_cast<std::uint64_t>(this->tensors().size()));
  put(header, static_cast<std::uint64_t>(metadata.pairs().size()));
  for (const auto& [key, value] : metadata.pairs()) {
    put(header, key);
    put(header, static_cast<std::uint32_t>(value.index()));
    std::visit([&](const auto& held) { put(header, held); }, value);
  }
  std::int64_t reached = 0;
  for (const TensorEntry& entry : this->tensors()) {
    put_record(header, entry, reached);
    state_->offsets.push_back(reached);
    reached = aligned(reached + entry.bytes(), alignment);
  }
  header.resize(static_cast<std::size_t>(aligned(std::ssize(header), alignment)), '\0');
  for (std::int64_t& offset : state_->offsets) offset += std::ssize(header);
  state_->bytes = std::ssize(header) + reached;
}

GgufWriter::~GgufWriter() = default;

void GgufWriter::lay_out() {
  state_->file.create(state_->header, state_->bytes);
}

void GgufWriter::write_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                               const std::byte* from) {
  const Encoding encoding = tensors()[index].encoding;
  state_->file.write_at(from, encoded_bytes(encoding, count),
                        state_->offsets[index] + encoded_bytes(encoding, first));
}

void GgufWriter::sync() {
  state_->file.sync();
}

void GgufWriter::rename_files() {
  state_->file.rename();
}

}  // namespace choir
