#include "src/store/patterned_pieces.hpp"

#include <algorithm>
#include <cstring>

namespace choir {
namespace {

constexpr std::int64_t kRun = 1 << 18;  // elements

/// The output function of splitmix64.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Fills with random bits, masked by `keep`, plus the bits of `set`.
template <class Word>
void fill(void* to, std::uint64_t tensor, std::int64_t first, std::int64_t count,
          Word keep = static_cast<Word>(~Word{0}), Word set = 0) {
  auto* words = static_cast<Word*>(to);
  for (std::int64_t i = 0; i < count; ++i)
    words[i] = static_cast<Word>(
        (mixed((tensor << 44) + static_cast<std::uint64_t>(first + i)) & keep) | set);
}

/// Floats are between 2^-7 and 2^-6, so that computations with them are valid.
void fill_run(void* to, DType dtype, std::uint64_t tensor, std::int64_t first, std::int64_t count) {
  switch (dtype) {
    case DType::f64:
      return fill<std::uint64_t>(to, tensor, first, count, (1ull << 52) - 1, 0x3F8ull << 52);
    case DType::f32:
      return fill<std::uint32_t>(to, tensor, first, count, (1u << 23) - 1, 0x3C000000u);
    case DType::bf16:
      return fill<std::uint16_t>(to, tensor, first, count, (1u << 7) - 1, 0x3C00u);
    case DType::f16:
      return fill<std::uint16_t>(to, tensor, first, count, (1u << 10) - 1, 0x2000u);
    case DType::i64:
      return fill<std::uint64_t>(to, tensor, first, count);
    case DType::i32:
      return fill<std::uint32_t>(to, tensor, first, count);
    case DType::u16:
      return fill<std::uint16_t>(to, tensor, first, count);
    case DType::u8:
      return fill<std::uint8_t>(to, tensor, first, count);
  }
}

bool beside(const StoredTensor& tensor) {
  return tensor.device != nullptr && !tensor.device->host_visible();
}

/// Calls `action(tensor number, tensor, address, first element, count)` on short runs.
template <class Action>
void over_runs(const std::vector<StoredTensor>& tensors, const Action& action) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto width = static_cast<std::int64_t>(size_of(tensors[t].dtype));
    for (const StoredPiece& piece : tensors[t].pieces)
      for (std::int64_t done = 0; done < piece.count; done += kRun)
        action(t, tensors[t], static_cast<std::byte*>(piece.data) + done * width,
               piece.first + done, std::min(kRun, piece.count - done));
  }
}

}  // namespace

void fill_pieces(const std::vector<StoredTensor>& tensors) {
  std::vector<std::byte> staging(kRun * sizeof(std::uint64_t));
  over_runs(tensors, [&](std::size_t t, const StoredTensor& tensor, std::byte* at,
                         std::int64_t first, std::int64_t count) {
    const std::size_t width = size_of(tensor.dtype);
    fill_run(beside(tensor) ? staging.data() : at, tensor.dtype, t + 1, first, count);
    if (beside(tensor))
      tensor.device->copy_from_host(at, staging.data(), static_cast<std::size_t>(count) * width);
  });
}

void spoil_pieces(const std::vector<StoredTensor>& tensors) {
  over_runs(tensors, [&](std::size_t, const StoredTensor& tensor, std::byte* at, std::int64_t,
                         std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(tensor.dtype);
    if (beside(tensor))
      tensor.device->zero(at, bytes);
    else
      std::memset(at, 0, bytes);
  });
}

std::int64_t wrong_elements(const std::vector<StoredTensor>& tensors) {
  std::vector<std::byte> expected(kRun * sizeof(std::uint64_t)), staging(expected.size());
  std::int64_t wrong = 0;
  over_runs(tensors, [&](std::size_t t, const StoredTensor& tensor, std::byte* at,
                         std::int64_t first, std::int64_t count) {
    const std::size_t width = size_of(tensor.dtype),
                      bytes = static_cast<std::size_t>(count) * width;
    const std::byte* there = at;
    if (beside(tensor)) {
      tensor.device->copy_to_host(staging.data(), at, bytes);
      there = staging.data();
    }
    fill_run(expected.data(), tensor.dtype, t + 1, first, count);
    if (std::memcmp(expected.data(), there, bytes) == 0) return;
    for (std::size_t i = 0; i < bytes; i += width)
      wrong += std::memcmp(expected.data() + i, there + i, width) != 0;
  });
  return wrong;
}

}  // namespace choir
