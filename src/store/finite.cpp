#include "src/store/finite.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

/// A real is NaN or infinite if all bits of its exponent are set. Memory need not be aligned.
template <class Bits>
void look_at(NotFinite& found, const char* data, Bits exponent, std::int64_t elements,
             std::int64_t at) {
  constexpr std::int64_t kElementsAtOnce = 4096;
  const auto bits_of = [data](std::int64_t i) {
    Bits bits;
    std::memcpy(&bits, data + static_cast<std::size_t>(i) * sizeof bits, sizeof bits);
    return bits;
  };
  for (std::int64_t block = 0; block < elements; block += kElementsAtOnce) {
    const std::int64_t end = std::min(block + kElementsAtOnce, elements);
    std::int64_t count = 0;
    for (std::int64_t i = block; i < end; ++i) count += (bits_of(i) & exponent) == exponent;
    if (count == 0) continue;
    found.count += count;
    std::int64_t i = block;
    while ((bits_of(i) & exponent) != exponent) ++i;
    if (found.first < 0 || at + i < found.first) found.first = at + i;
  }
}

NotFinite found_in(const StoredTensor& tensor) {
  // elements copied from a device at a time
  constexpr std::int64_t kStaged = std::int64_t{1} << 20;
  const std::size_t width = size_of(tensor.dtype);
  const bool staged = tensor.device != nullptr && !tensor.device->host_visible();
  NotFinite found;
  std::vector<char> host;
  if (tensor.consume) return found;  // its reader has looked at all elements
  for (const StoredPiece& piece : tensor.pieces) {
    if (!staged) {
      found.look(piece.data, tensor.dtype, piece.count, piece.first);
      continue;
    }
    for (std::int64_t at = 0; at < piece.count; at += kStaged) {
      const std::int64_t count = std::min(kStaged, piece.count - at);
      host.resize(static_cast<std::size_t>(count) * width);
      tensor.device->copy_to_host(
          host.data(), static_cast<const char*>(piece.data) + static_cast<std::size_t>(at) * width,
          host.size());
      found.look(host.data(), tensor.dtype, count, piece.first + at);
    }
  }
  return found;
}

/// Throws an error that all ranks have agreed on, so that one of them reports it.
template <class Failure>
[[noreturn]] void throw_agreed(const Communicator& world, const std::string& what,
                               const std::string& hint) {
  Failure error(what, hint);
  error.set_agreed_ranks(world.size());
  throw error;
}

constexpr std::size_t kNamed = 5;

std::string and_more(std::size_t count) {
  return count <= kNamed ? "" : fmt::format("\n  and {} more", count - kNamed);
}

}  // namespace

void NotFinite::look(const void* data, DType dtype, std::int64_t elements, std::int64_t at) {
  const char* bytes = static_cast<const char*>(data);
  switch (dtype) {
    case DType::f64:
      return look_at<std::uint64_t>(*this, bytes, 0x7ff0000000000000u, elements, at);
    case DType::f32:
      return look_at<std::uint32_t>(*this, bytes, 0x7f800000u, elements, at);
    case DType::bf16:
      return look_at<std::uint16_t>(*this, bytes, 0x7f80u, elements, at);
    case DType::f16:
      return look_at<std::uint16_t>(*this, bytes, 0x7c00u, elements, at);
    default:
      return;
  }
}

void FiniteCheck::look(const std::string& name, const void* data, DType dtype,
                       std::int64_t elements, std::int64_t at) {
  NotFinite found;
  found.look(data, dtype, elements, at);
  if (found.count == 0) return;
  NotFinite& all = found_[name];
  all.count += found.count;
  all.first = all.first < 0 ? found.first : std::min(all.first, found.first);
}

void FiniteCheck::require(const TensorReader& file, Communicator& world) const {
  std::vector<std::int64_t> counts, firsts;  // in the order of the file, equal on all ranks
  for (const TensorEntry& entry : file.tensors()) {
    const auto found = found_.find(entry.name);
    counts.push_back(found == found_.end() ? 0 : found->second.count);
    firsts.push_back(found == found_.end() ? kNone : found->second.first);
  }
  world.all_reduce(counts.data(), counts.size(), DType::i64, ReduceOp::sum);
  world.all_reduce(firsts.data(), firsts.size(), DType::i64, ReduceOp::min);
  std::string lines;
  std::size_t tensors = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0 || ++tensors > kNamed) continue;
    lines += fmt::format("\n  {}: {} of {}, the first is element {}", file.tensors()[i].name,
                         counts[i], counted(file.tensors()[i].shape.count(), "element"), firsts[i]);
  }
  if (tensors > 0)
    throw_agreed<DataError>(
        world,
        fmt::format("'{}' has weights that are NaN or infinite:{}{}", file.path(), lines,
                    and_more(tensors)),
        "results of a model would be meaningless: get an undamaged copy of the file");
}

void require_finite(const std::vector<StoredTensor>& tensors, const std::string& path,
                    Communicator& world) {
  std::vector<std::int64_t> firsts;
  for (const StoredTensor& tensor : tensors) {
    const NotFinite found = found_in(tensor);
    firsts.push_back(found.count == 0 ? kNone : found.first);
  }
  world.all_reduce(firsts.data(), firsts.size(), DType::i64, ReduceOp::min);
  std::string lines;
  std::size_t damaged = 0;
  for (std::size_t i = 0; i < firsts.size(); ++i)
    if (firsts[i] != kNone && ++damaged <= kNamed)
      lines += fmt::format("\n  {}, first at element {}", tensors[i].name, firsts[i]);
  if (damaged > 0)
    throw_agreed<NumericError>(
        world,
        fmt::format("the weights of {} are not finite (NaN or infinity):{}{}", path, lines,
                    and_more(damaged)),
        "use another checkpoint; if the model was imported, import an undamaged file again");
}

}  // namespace choir
