#pragma once
// Token (and learned position) embedding.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/positions.hpp"

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
  /// Ids below 0 mark rows that come from elsewhere (choir/ops/splice.hpp); their rows are zero,
  /// too.
  bool spliced = false;
  bool accumulate = false;  ///< add to the content of `out`
  /// If not nullptr, the number is added to first_position; CUDA only, where the host need not know
  /// it. `positions` must have a row for every position that can occur.
  const std::int32_t* first_position_on_device = nullptr;
};

/// d_table[ids[r]] += d_out[r]; d_positions[first_position + t] += sum over samples. Deterministic:
/// on the CPU rows are added in ascending r for any number of threads; on CUDA in segments of
/// ascending r that depend only on the ids (kernels/embedding/embedding.cuh). Ids outside the table
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
