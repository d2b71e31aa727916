#pragma once
// Token (and learned position) embedding.

#include <bit>
#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/positions.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// out[r] (+)= table[ids[r]] (+ positions[first_position + r % tokens]). An id outside the table is
/// refused if the host can see it; otherwise its row is zero.
struct EmbeddingForward {
  TensorView ids;        ///< [N] i32 in [0, V)
  TensorView table;      ///< [V, C]
  TensorView positions;  ///< [P, C] or empty
  std::int64_t tokens = 1;
  std::int64_t first_position = 0;
  TensorView out;  ///< [N, C]
  /// For a table divided among ranks: the id of the first row, and the total number of ids (0: the
  /// rows of the table). The row of another rank's id is zero.
  std::int64_t first_id = 0, vocabulary = 0;
  /// Positions from here on are padding: they need no row of `positions` and use the last one.
  std::int64_t position_end = kNoPositionEnd;
  /// Ids below 0 mark rows that come from elsewhere (kernels/copy/copy.hpp); their rows are zero,
  /// too.
  bool spliced = false;
  bool accumulate = false;  ///< add to the content of `out`
  /// If not nullptr, the number is added to first_position; CUDA only, where the host need not know
  /// it. `positions` must have a row for every position that can occur.
  const std::int32_t* first_position_on_device = nullptr;
};

/// d_table[ids[r]] += d_out[r]; d_positions[first_position + t] += sum over samples. Deterministic:
/// on the CPU rows are added in ascending r for any number of threads; on CUDA in segments of
/// ascending r that depend only on the ids (kernels/embedding/embedding.cu). Ids outside the table
/// are treated as in forward.
struct EmbeddingBackward {
  TensorView ids, d_out;
  TensorView d_table;      ///< [V, C] gradient dtype (f32, or f64); empty if frozen
  TensorView d_positions;  ///< [P, C] or empty
  std::int64_t tokens = 1;
  std::int64_t first_id = 0, vocabulary = 0;  ///< as in forward; ids of other ranks are skipped
  TensorView workspace;                       ///< u8 [embedding_workspace()]
  std::int64_t first_position = 0;
  std::int64_t position_end = kNoPositionEnd;  ///< as in forward; padding adds nothing to positions
  bool spliced = false;                        ///< as in forward; such ids add nothing to the table
};

/// Bytes of workspace for embedding_backward(); 0 on the CPU. `vocabulary` is the number of rows of
/// d_table, or 1 without one.
std::int64_t embedding_workspace(const Stream& stream, std::int64_t rows, std::int64_t vocabulary,
                                 std::int64_t width);
void embedding_forward(const Stream& stream, const EmbeddingForward& args);
void embedding_backward(const Stream& stream, const EmbeddingBackward& args);

}  // namespace choir::ops

namespace choir {

// Workspace layout of embedding_backward on the CUDA device. It depends on the shape alone, so that
// any machine can plan for a GPU.

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

namespace cpu {

// Rows of a table by token id, plus rows of learned positions. Backward on the CPU scatters sums:
// threads share the columns and every thread processes all rows in order, so no two threads write
// one element and the order of additions never changes (no atomics, no sorting). Floor per element:
// forward 2 (3 with positions) transfers, backward 1 read and 2 of the gradient.

template <class T>
void embedding_forward(const ops::EmbeddingForward& args);
template <class T>
void embedding_backward(const ops::EmbeddingBackward& args);
/// The smallest and largest id, to check that all ids are in the table.
struct IdRange {
  std::int32_t lowest, highest;
};
IdRange id_range(const TensorView& ids);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void embedding_forward(const Stream& stream, const ops::EmbeddingForward& args);
CHOIR_CUDA_KERNEL void embedding_backward(const Stream& stream, const ops::EmbeddingBackward& args);
}  // namespace cuda

namespace ref {
/// f64.
void embedding_forward(const ops::EmbeddingForward& args);
void embedding_backward(const ops::EmbeddingBackward& args);
}  // namespace ref

}  // namespace choir
