#include "choir/store/tensor_writer.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/core/error.hpp"

namespace choir {
namespace {

// Number of elements converted at a time: whole blocks of every encoding.
constexpr std::int64_t kWrittenPiece = std::int64_t{1} << 18;

}  // namespace

TensorWriter::TensorWriter(std::string path, std::vector<TensorEntry> tensors)
    : path_(std::move(path)), tensors_(std::move(tensors)) {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (!index_.emplace(tensors_[i].name, i).second)
      throw StorageError(fmt::format("'{}' cannot have two tensors '{}'", path_, tensors_[i].name));
}

std::int64_t TensorWriter::bytes() const {
  std::int64_t sum = 0;
  for (const TensorEntry& entry : tensors_) sum += entry.bytes();
  return sum;
}

void TensorWriter::write(std::string_view name, std::int64_t first, std::int64_t count,
                         const void* from, DType dtype) {
  const auto found = index_.find(name);
  CHOIR_CHECK(found != index_.end(), "no tensor {} was declared", name);
  const TensorEntry& entry = tensors_[found->second];
  const std::int64_t block = block_elements(entry.encoding);
  CHOIR_CHECK(first >= 0 && count >= 0 && first <= entry.shape.count() - count &&
                  first % block == 0 && count % block == 0,
              "elements {} + {} of {} {}", first, count, name, to_string(entry.shape));
  const Encoding given = encoding_of(dtype);
  CHOIR_CHECK(can_convert(given, entry.encoding), "{} is {}, not {}", name, name_of(entry.encoding),
              name_of(dtype));
  const auto* in = static_cast<const std::byte*>(from);
  std::vector<std::byte> encoded;
  for (std::int64_t at = 0; at < count; at += kWrittenPiece) {
    const std::int64_t now = std::min(kWrittenPiece, count - at);
    const std::byte* piece = in + at * static_cast<std::int64_t>(size_of(dtype));
    if (given != entry.encoding) {
      encoded.resize(static_cast<std::size_t>(encoded_bytes(entry.encoding, now)));
      const std::int64_t misfit = convert(piece, given, encoded.data(), entry.encoding, now);
      if (misfit >= 0)
        throw StorageError(fmt::format("element {} of tensor '{}' cannot be held by {}",
                                       first + at + misfit, name, name_of(entry.encoding)),
                           "write BF16 or F32, which have a wider range");
      piece = encoded.data();
    }
    write_encoded(found->second, first + at, now, piece);
  }
  written_ += count;
}

void TensorWriter::commit(std::int64_t written) {
  std::int64_t elements = 0;
  for (const TensorEntry& entry : tensors_) elements += entry.shape.count();
  if (written != elements)
    throw StorageError(
        fmt::format("{} of {} elements of '{}' were written", written, elements, path_));
  rename_files();
}

}  // namespace choir
