#include "src/data/text/documents.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/core/error.hpp"
#include "src/data/text/token_file.hpp"

namespace choir {
namespace {

template <class T>
T number_at(const PosixFile& file, std::int64_t offset) {
  T value;
  file.read_at(&value, sizeof value, offset);
  return value;
}

}  // namespace

MegatronDocuments::MegatronDocuments(const std::string& path, int token_bytes, std::int64_t tokens)
    : file_(PosixFile::for_reading(path)), token_bytes_(token_bytes), tokens_(tokens) {
  sequences_ = number_at<std::int64_t>(file_, kIndexSequences);
  documents_ = number_at<std::int64_t>(file_, kIndexDocuments);
}

std::int64_t MegatronDocuments::start(std::int64_t d) const {
  if (d >= documents_) return tokens_;
  const std::int64_t pointers = kIndexFixedBytes + 4 * sequences_;
  const auto sequence = number_at<std::int64_t>(file_, pointers + 8 * (sequences_ + d));
  if (sequence >= sequences_) return tokens_;
  return number_at<std::int64_t>(file_, pointers + 8 * sequence) / token_bytes_;
}

std::int64_t MegatronDocuments::first_after(std::int64_t token) const {
  std::int64_t low = 0, high = documents_;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (start(middle) > token)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

void MegatronDocuments::check() const {
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 16;
  if (documents_ == 0)
    throw DataError(fmt::format("Megatron index '{}' names no documents", file_.path()),
                    "build the pair again with Megatron-LM's preprocess_data.py, or set "
                    "data.documents = \"ignore\"");
  std::vector<std::int64_t> firsts;
  std::int64_t before = 0;
  for (std::int64_t d = 0; d < documents_; d += kAtOnce) {
    firsts.resize(static_cast<std::size_t>(std::min(kAtOnce, documents_ - d)));
    file_.read_at(firsts.data(), firsts.size() * sizeof firsts[0],
                  kIndexFixedBytes + 12 * sequences_ + 8 * d);
    for (std::size_t i = 0; i < firsts.size(); before = firsts[i++])
      if (firsts[i] < before || firsts[i] > sequences_)
        throw DataError(
            fmt::format("Megatron index '{}' is damaged: document {} begins with sequence {}, the "
                        "one before it with {}, of {}",
                        file_.path(), d + static_cast<std::int64_t>(i), firsts[i], before,
                        sequences_),
            "build the pair again with Megatron-LM's preprocess_data.py");
  }
}

DocumentEnds::DocumentEnds(const TokenStream& stream, std::int32_t end_token)
    : stream_(stream), end_token_(end_token), indices_(stream.files().size()) {
  for (const TokenFile& file : stream.files()) indexed_ = indexed_ || !file.index.empty();
}

const MegatronDocuments& DocumentEnds::index_of(std::size_t file) {
  std::unique_ptr<MegatronDocuments>& index = indices_[file];
  const TokenFile& of = stream_.files()[file];
  if (!index)
    index = std::make_unique<MegatronDocuments>(of.index, stream_.token_bytes(), of.count);
  return *index;
}

void DocumentEnds::mark(const TokenWindow& window, const std::int32_t* inputs,
                        std::vector<std::uint8_t>& ends) {
  ends.assign(static_cast<std::size_t>(window.targets), 0);
  for (std::size_t t = 0; end_token_ >= 0 && t < ends.size(); ++t)
    ends[t] = inputs[t] == end_token_;
  if (!indexed_) return;
  for (std::int64_t at = window.start; at < window.start + window.targets;) {
    const std::size_t f = stream_.file_of(at);
    const TokenFile& file = stream_.files()[f];
    const std::int64_t end = std::min(file.first + file.count, window.start + window.targets);
    if (!file.index.empty())
      index_of(f).ends_within(at - file.first, end - at, [&](std::int64_t position) {
        ends[static_cast<std::size_t>(file.first + position - window.start)] = 1;
      });
    at = end;
  }
}

void require_document_ends(const TokenStream& stream, std::int32_t end_token) {
  for (const TokenFile& file : stream.files()) {
    if (!file.index.empty())
      MegatronDocuments(file.index, stream.token_bytes(), file.count).check();
    else if (end_token < 0)
      throw DataError(
          fmt::format("data.documents = \"separate\", but it is unknown where a document ends in "
                      "'{}': the file has no index of documents, and the data have no vocabulary "
                      "with a token that ends a text",
                      file.path),
          "give the id of the token that ends a document in data.document_end (GPT-2: 50256), or "
          "set data.documents = \"ignore\"");
  }
}

void separate_documents(const std::vector<std::uint8_t>& ends, std::int64_t inputs,
                        std::int64_t row, Batch& batch) {
  const std::int64_t block = batch.inputs.shape[1];
  auto* targets = batch.targets.as<std::int32_t>() + row * block;
  auto* begins = batch.begins.as<std::int32_t>() + row * block;
  auto* positions = batch.positions.as<std::int32_t>() + row * block;
  std::int64_t begin = 0;
  for (std::int64_t t = 0; t < block; ++t) {
    if (t == inputs) begin = t;
    begins[t] = static_cast<std::int32_t>(begin);
    positions[t] = static_cast<std::int32_t>(t - begin);
    if (t >= inputs || ends[static_cast<std::size_t>(t)] == 0) continue;
    if (targets[t] != kIgnoredTarget) --batch.valid;
    targets[t] = kIgnoredTarget;
    begin = t + 1;
  }
}

void separate_documents(std::int32_t end_token, std::int64_t full, Batch& batch) {
  const std::int64_t rows = batch.inputs.shape[0], block = batch.inputs.shape[1];
  const auto* inputs = batch.inputs.as<std::int32_t>();
  std::vector<std::uint8_t> ends(static_cast<std::size_t>(block));
  for (std::int64_t row = 0; row < rows; ++row, inputs += block) {
    for (std::size_t t = 0; t < ends.size(); ++t) ends[t] = inputs[t] == end_token;
    separate_documents(ends, row < full ? block : 0, row, batch);
  }
}

DocumentCounts count_documents(const Batch& batch, std::int64_t window) {
  DocumentCounts counts{.targets = batch.valid};
  const std::int64_t rows = batch.inputs.shape[0], block = batch.inputs.shape[1];
  const auto* positions = batch.positions.as<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row, positions += block) {
    for (std::int64_t t = 0; t < block; ++t) {
      if (t + 1 < block && positions[t + 1] != 0) continue;
      const std::int64_t length = positions[t] + 1;
      counts.pairs += length * length;
      const bool hides = window > 0 && window < length;
      counts.window_pairs += hides ? window * (2 * length - window) : length * length;
    }
  }
  return counts;
}

}  // namespace choir
