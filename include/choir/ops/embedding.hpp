#pragma once
// Token (and learned position) embedding.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// out[r] = table[ids[r]] (+ positions[first_position + r % tokens]).
struct EmbeddingForward {
  TensorView ids;        ///< [N] i32 in [0, V)
  TensorView table;      ///< [V, C]
  TensorView positions;  ///< [P, C] or empty
  std::int64_t tokens = 1;
  std::int64_t first_position = 0;
  TensorView out;  ///< [N, C]
};

/// d_table[ids[r]] += d_out[r]; d_positions[p] += sum over samples. Rows are added in ascending r
/// whatever the number of threads: deterministic.
struct EmbeddingBackward {
  TensorView ids, d_out;
  TensorView d_table;      ///< [V, C] gradient dtype (f32, or f64)
  TensorView d_positions;  ///< [P, C] or empty
  std::int64_t tokens = 1;
};

void embedding_forward(const Stream& stream, const EmbeddingForward& args);
void embedding_backward(const Stream& stream, const EmbeddingBackward& args);

}  // namespace choir::ops
