#include "src/store/llmc/llmc_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "choir/core/error.hpp"
#include "src/core/file_kind.hpp"
#include "src/store/weight_file.hpp"

namespace choir {
namespace {

constexpr std::int32_t kModelMagic = 20240326, kVersionF32 = 3, kVersionBf16 = 5;
constexpr std::int64_t kHeaderBytes = 1024, kVocabMultiple = 128;
using Header = std::array<std::int32_t, kHeaderBytes / 4>;

/// Positions of the tensors in the file, which follow from the configuration.
struct Layout {
  std::vector<TensorEntry> entries;
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = kHeaderBytes;

  Layout(const LlmcConfig& config, std::int64_t padded_vocab, const std::string& path) {
    const std::int64_t l = config.layers, c = config.width;
    const Encoding encoding = config.in_bf16 ? Encoding::bf16 : Encoding::f32;
    const auto add = [&](const char* name, const std::vector<std::int64_t>& shape,
                         std::int64_t padding = 0) {
      const std::string what = fmt::format("tensor '{}' of '{}'", name, path);
      entries.push_back({name, encoding, checked_shape(shape, encoding, what)});
      offsets.push_back(bytes);
      bytes += entries.back().bytes() + encoded_bytes(encoding, padding);
    };
    add("wte", {config.vocab_size, c}, (padded_vocab - config.vocab_size) * c);
    add("wpe", {config.block_size, c});
    add("ln1w", {l, c});
    add("ln1b", {l, c});
    add("qkvw", {l, 3 * c, c});
    add("qkvb", {l, 3 * c});
    add("attprojw", {l, c, c});
    add("attprojb", {l, c});
    add("ln2w", {l, c});
    add("ln2b", {l, c});
    add("fcw", {l, 4 * c, c});
    add("fcb", {l, 4 * c});
    add("fcprojw", {l, c, 4 * c});
    add("fcprojb", {l, c});
    add("lnfw", {c});
    add("lnfb", {c});
  }
};

std::int64_t padded(std::int64_t vocab) {
  return (vocab + kVocabMultiple - 1) / kVocabMultiple * kVocabMultiple;
}

Header read_header(const FileWindow& file) {
  const std::int64_t there = std::min<std::int64_t>(file.bytes(), kFileKindBytes);
  const FileKind kind = file_kind(file.text_at(0, there));
  if (kind != FileKind::llmc_model)
    throw StorageError(
        fmt::format("'{}' is {}, not a GPT-2 model of llm.c", file.name(), describe(kind)));
  return file.number_at<Header>(0);
}

LlmcConfig config_from(const Header& header, const std::string& path) {
  if (header[1] != kVersionF32 && header[1] != kVersionBf16)
    throw StorageError(
        fmt::format("'{}' has version {} of llm.c's models; 3 (float) and 5 (bf16) are supported",
                    path, header[1]));
  for (std::size_t i = 2; i < 8; ++i)
    if (header[i] <= 0)
      throw StorageError(fmt::format("number {} of the header of '{}' is {}", i, path, header[i]));
  if (header[6] % header[5] != 0 || header[7] < header[3])
    throw StorageError(
        fmt::format("the header of '{}' has {} heads, width {}, vocabulary {} padded to {}", path,
                    header[5], header[6], header[3], header[7]));
  return {header[2], header[3], header[4], header[5], header[6], header[1] == kVersionBf16};
}

}  // namespace

struct LlmcReader::State {
  FileWindow file;
  Header header;
  LlmcConfig config;
  Layout layout;

  explicit State(const std::string& path)
      : file(path),
        header(read_header(file)),
        config(config_from(header, path)),
        layout(config, header[7], path) {
    if (layout.bytes != file.bytes())
      throw StorageError(fmt::format("'{}' has {} bytes, but its header describes {}", path,
                                     file.bytes(), layout.bytes),
                         "the copy or download may be incomplete");
  }
};

LlmcReader::LlmcReader(const std::string& path)
    : TensorReader(path), state_(std::make_unique<State>(path)) {
  set_tensors(state_->layout.entries);
}

LlmcReader::~LlmcReader() = default;

const LlmcConfig& LlmcReader::config() const {
  return state_->config;
}

void LlmcReader::read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                              std::byte* to) const {
  const Encoding encoding = tensors()[index].encoding;
  state_->file.read_at(to, encoded_bytes(encoding, count),
                       state_->layout.offsets[index] + encoded_bytes(encoding, first));
}

struct LlmcWriter::State {
  Layout layout;
  std::string header;
  PendingFile file;
};

LlmcWriter::LlmcWriter(const std::string& path, const LlmcConfig& config)
    : TensorWriter(path, Layout(config, config.vocab_size, path).entries),
      state_(new State{Layout(config, padded(config.vocab_size), path), {}, PendingFile(path)}) {
  Header header{};
  const std::array<std::int64_t, 8> numbers{
      kModelMagic,       config.in_bf16 ? kVersionBf16 : kVersionF32,
      config.block_size, config.vocab_size,
      config.layers,     config.heads,
      config.width,      padded(config.vocab_size)};
  for (std::size_t i = 0; i < numbers.size(); ++i)
    header[i] = static_cast<std::int32_t>(numbers[i]);
  state_->header.assign(reinterpret_cast<const char*>(header.data()), sizeof header);
}

LlmcWriter::~LlmcWriter() = default;

void LlmcWriter::lay_out() {
  state_->file.create(state_->header, state_->layout.bytes);
}

void LlmcWriter::write_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                               const std::byte* from) {
  const Encoding encoding = tensors()[index].encoding;
  state_->file.write_at(from, encoded_bytes(encoding, count),
                        state_->layout.offsets[index] + encoded_bytes(encoding, first));
}

void LlmcWriter::sync() {
  state_->file.sync();
}

void LlmcWriter::rename_files() {
  state_->file.rename();
}

}  // namespace choir
