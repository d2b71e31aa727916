#include "src/store/tensor_file.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

// Number of elements converted at a time.
constexpr std::int64_t kPiece = std::int64_t{1} << 18;

[[noreturn]] void refuse_element(const TensorEntry& entry, std::int64_t element,
                                 const std::string& path, DType dtype) {
  throw StorageError(fmt::format("element {} of tensor '{}' in '{}' cannot be held by {}", element,
                                 entry.name, path, name_of(dtype)),
                     "use a type with a wider range");
}

}  // namespace

Shape checked_shape(const std::vector<std::int64_t>& extents, Encoding encoding,
                    const std::string& what) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 56;
  if (extents.size() > Shape::kMaxRank)
    throw StorageError(
        fmt::format("{} has {} dimensions, more than {}", what, extents.size(), Shape::kMaxRank));
  Shape shape;
  std::int64_t product = 1;  // without zeros, so that overflow by a later extent is detected
  for (const std::int64_t extent : extents) {
    if (extent < 0) throw StorageError(fmt::format("{} has the extent {}", what, extent));
    if (extent > 0 && product > kMostElements / extent)
      throw StorageError(what + " has an impossible number of elements");
    if (extent > 0) product *= extent;
    shape.append(extent);
  }
  if (shape.count() % block_elements(encoding) != 0)
    throw StorageError(fmt::format("{} has {} elements, not whole blocks of {}", what,
                                   shape.count(), name_of(encoding)));
  return shape;
}

void TensorReader::set_tensors(std::vector<TensorEntry> tensors) {
  tensors_ = std::move(tensors);
  index_.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (!index_.emplace(tensors_[i].name, i).second)
      throw StorageError(fmt::format("'{}' has two tensors '{}'", path_, tensors_[i].name));
}

const TensorEntry* TensorReader::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::size_t TensorReader::index_of(std::string_view name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return found->second;
  std::vector<std::string> names;
  for (const TensorEntry& entry : tensors_) names.push_back(entry.name);
  const std::string near = nearest_name(name, names);
  throw StorageError(fmt::format("'{}' has no tensor '{}'", path_, name),
                     near.empty() ? std::string() : "there is '" + near + "'");
}

const TensorEntry& TensorReader::at(std::string_view name) const {
  return tensors_[index_of(name)];
}

void TensorReader::read(std::string_view name, std::int64_t first, std::int64_t count, void* to,
                        DType dtype) const {
  const std::size_t index = index_of(name);
  const TensorEntry& entry = tensors_[index];
  CHOIR_CHECK(first >= 0 && count >= 0 && first <= entry.shape.count() - count,
              "elements {} + {} of {} {}", first, count, name, to_string(entry.shape));
  const Encoding wanted = encoding_of(dtype);
  if (!can_convert(entry.encoding, wanted))
    throw StorageError(fmt::format("tensor '{}' in '{}' is stored as {} and cannot be read as {}",
                                   name, path_, name_of(entry.encoding), name_of(dtype)));
  auto* out = static_cast<std::byte*>(to);
  if (entry.encoding == wanted) return read_encoded(index, first, count, out);
  const std::int64_t block = block_elements(entry.encoding);
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t end = first + count, begin = first / block * block;
  std::vector<std::byte> stored, converted;
  for (std::int64_t at = begin; at < end; at += kPiece) {
    const std::int64_t now = std::min(kPiece, (end - at + block - 1) / block * block);
    stored.resize(static_cast<std::size_t>(encoded_bytes(entry.encoding, now)));
    read_encoded(index, at, now, stored.data());
    // A block at either end may extend beyond the requested range.
    const std::int64_t from = std::max(at, first), until = std::min(at + now, end);
    const bool exact = from == at && until == at + now;
    if (!exact) converted.resize(static_cast<std::size_t>(now * width));
    std::byte* direct = out + (from - first) * width;
    const std::int64_t misfit =
        convert(stored.data(), entry.encoding, exact ? direct : converted.data(), wanted, now);
    if (misfit >= 0) refuse_element(entry, at + misfit, path_, dtype);
    if (!exact)
      std::memcpy(direct, converted.data() + (from - at) * width,
                  static_cast<std::size_t>((until - from) * width));
  }
}

void TensorReader::read_stored(std::string_view name, std::int64_t first, std::int64_t count,
                               std::byte* to) const {
  const std::size_t index = index_of(name);
  const TensorEntry& entry = tensors_[index];
  CHOIR_CHECK(first >= 0 && count >= 0 && first <= entry.shape.count() - count,
              "elements {} + {} of {} {}", first, count, name, to_string(entry.shape));
  read_encoded(index, first, count, to);
}

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
