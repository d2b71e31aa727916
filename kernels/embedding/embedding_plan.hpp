#pragma once
// Workspace layout of embedding_backward on the CUDA device. It depends on the shape alone, so that
// any machine can plan for a GPU.
#include <bit>
#include <cstdint>

namespace choir {

struct EmbeddingPlan {
  /// Number of sorted rows that are added as one segment, which fixes the order of additions.
  static constexpr std::int64_t kSegment = 64;
  static constexpr std::int64_t kSortTile = 2048;  ///< rows sorted by a block
  static constexpr int kMaxDigitBits = 8;

  std::int64_t rows, vocabulary, width;
  int passes, digit_bits;  ///< of the radix sort; keys are 0 .. vocabulary (outside the table)
  std::int64_t bytes = 0;
  std::int64_t keys[2], order[2], tile_counts, digit_counts;  ///< offsets into the workspace
  /// Sums left by the segments: level 0 has two places for every segment of rows, level 1 two for
  /// every segment of level 0, and so on. Offsets and counts.
  static constexpr int kMaxLevels = 8;
  int levels = 0;
  std::int64_t places[kMaxLevels], place_keys[kMaxLevels], place_order[kMaxLevels],
      sums[kMaxLevels];

  EmbeddingPlan(std::int64_t n, std::int64_t table_rows, std::int64_t columns)
      : rows(n), vocabulary(table_rows), width(columns) {
    const int bits = std::bit_width(static_cast<std::uint64_t>(vocabulary));
    passes = (bits + kMaxDigitBits - 1) / kMaxDigitBits;
    digit_bits = (bits + passes - 1) / passes;
    for (int i = 0; i < 2; ++i) keys[i] = take(4 * rows), order[i] = take(4 * rows);
    tile_counts = take(4 * digits() * sort_tiles());
    digit_counts = take(4 * digits());
    for (std::int64_t items = rows; items > kSegment; ++levels) {
      items = places[levels] = 2 * segments(items);
      place_keys[levels] = take(4 * items), place_order[levels] = take(4 * items);
      sums[levels] = take(4 * items * width);
    }
  }
  std::int64_t digits() const { return std::int64_t{1} << digit_bits; }
  std::int64_t sort_tiles() const { return (rows + kSortTile - 1) / kSortTile; }
  static std::int64_t segments(std::int64_t items) { return (items + kSegment - 1) / kSegment; }

 private:
  std::int64_t take(std::int64_t size) {
    const std::int64_t offset = bytes;
    bytes += (size + 63) / 64 * 64;
    return offset;
  }
};

}  // namespace choir
