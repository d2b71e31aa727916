#include "src/data/tokens/megatron_index.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "choir/core/error.hpp"
#include "src/data/posix_file.hpp"

namespace choir {
namespace {

constexpr std::array<char, 9> kMagic{'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr std::int64_t kFixedBytes = 9 + 8 + 1 + 8 + 8;
constexpr int kCodeInt32 = 4, kCodeUint16 = 8;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
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
  index.read_at(lengths.data(), lengths.size() * 4, kFixedBytes);
  index.read_at(pointers.data(), pointers.size() * 8, kFixedBytes + 4 * sequences);
  std::int64_t expected = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || pointers[i] != expected)
      refuse(index.path(), fmt::format("is damaged: sequence {} starts at byte {}, expected {}", i,
                                       pointers[i], expected));
    expected += static_cast<std::int64_t>(lengths[i]) * token_bytes;
  }
  if (expected != bin_bytes)
    refuse(index.path(),
           fmt::format("accounts for {} bytes, the .bin file has {}", expected, bin_bytes));
}

}  // namespace

int read_megatron_index(const std::string& index_path, const std::string& bin_path) {
  const PosixFile index = PosixFile::for_reading(index_path);
  if (index.size() < kFixedBytes) refuse(index_path, "is truncated");
  if (take<std::array<char, 9>>(index, 0) != kMagic) refuse(index_path, "has no MMIDIDX mark");
  if (const auto version = take<std::uint64_t>(index, 9); version != 1)
    refuse(index_path, fmt::format("has version {}, 1 is known", version));
  const int code = take<std::uint8_t>(index, 17);
  if (code != kCodeInt32 && code != kCodeUint16)
    refuse(index_path,
           fmt::format("has type code {}; 4 (int32) and 8 (uint16) are token types", code));
  const auto sequences = take<std::uint64_t>(index, 18);
  const auto documents = take<std::uint64_t>(index, 26);
  const auto size = static_cast<std::uint64_t>(index.size());
  if (sequences > size || documents > size ||
      size != static_cast<std::uint64_t>(kFixedBytes) + 12 * sequences + 8 * documents)
    refuse(index_path, fmt::format("has {} bytes, which {} sequences and {} documents do not need",
                                   size, sequences, documents));
  const int token_bytes = code == kCodeUint16 ? 2 : 4;
  const PosixFile bin = PosixFile::for_reading(bin_path);
  check_sequences(index, static_cast<std::int64_t>(sequences), token_bytes, bin.size());
  return token_bytes;
}

}  // namespace choir
