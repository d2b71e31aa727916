#pragma once
// Token (and learned position) embedding.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/positions.hpp"

namespace choir::ops {

/// out[r] (+)= table[ids[r]] (+ positions[first_position + r % tokens]). An id outside the table is
/// refused where the host can see it; elsewhere it stands for a row of zeros.
struct EmbeddingForward {
  TensorView ids;        ///< [N] i32 in [0, V)
  TensorView table;      ///< [V, C]
  TensorView positions;  ///< [P, C] or empty
  std::int64_t tokens = 1;
  std::int64_t first_position = 0;
  TensorView out;  ///< [N, C]
  /// In a table divided among ranks, the id of the first row, and how many ids there are in all
  /// (0: the rows of the table). An id of another rank stands for a row of zeros.
  std::int64_t first_id = 0, vocabulary = 0;
  /// Positions from here on are padding: they need no row of `positions`, and get the last one.
  std::int64_t position_end = kNoPositionEnd;
  /// Ids below 0 stand for rows that come from elsewhere (choir/ops/splice.hpp): zeros, too.
  bool spliced = false;
  bool accumulate = false;  ///< added to what is in `out`
  /// Not nullptr: added to first_position; on cuda, where the host need not know it. `positions`
  /// has a row for every position that comes.
  const std::int32_t* first_position_on_device = nullptr;
};

/// d_table[ids[r]] += d_out[r]; d_positions[first_position + t] += sum over samples. Deterministic:
/// on the cpu rows are added in ascending r whatever the number of threads, on cuda in segments of
/// ascending r that the ids alone decide (kernels/embedding/embedding.cuh). Ids outside the table:
/// as forward.
struct EmbeddingBackward {
  TensorView ids, d_out;
  TensorView d_table;      ///< [V, C] gradient dtype (f32, or f64); empty when frozen
  TensorView d_positions;  ///< [P, C] or empty
  std::int64_t tokens = 1;
  std::int64_t first_id = 0, vocabulary = 0;  ///< as forward; ids of other ranks: nothing
  TensorView workspace;                       ///< u8 [embedding_workspace()]
  std::int64_t first_position = 0;
  std::int64_t position_end = kNoPositionEnd;  ///< as forward; padding adds nothing to positions
  bool spliced = false;                        ///< as forward; they add nothing to the table
};

/// Bytes of memory that embedding_backward() needs beside its tensors; 0 on the cpu. `vocabulary`:
/// rows of d_table, without one 1.
std::int64_t embedding_workspace(const Stream& stream, std::int64_t rows, std::int64_t vocabulary,
                                 std::int64_t width);
void embedding_forward(const Stream& stream, const EmbeddingForward& args);
void embedding_backward(const Stream& stream, const EmbeddingBackward& args);

}  // namespace choir::ops
