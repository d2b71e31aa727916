#pragma once
// Rotary position embedding (Su et al. 2021), in place.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/positions.hpp"

namespace choir::ops {

/// Which features form a rotated pair: (d, d + D/2) as Llama/NeoX, or (2d, 2d + 1) as the paper.
enum class RopePairing { half_split, interleaved };

struct Rope {
  RopePairing pairing = RopePairing::half_split;
  TensorView x;  ///< [rows, row_width]; the first `heads` heads of every row are rotated
  std::int64_t heads = 0;
  std::int64_t head_width = 0;  ///< D, even
  std::int64_t tokens = 1;      ///< row r holds position first_position + r % tokens
  std::int64_t first_position = 0;
  /// Positions from here on are padding: they need no row of the table, and turn by the last one.
  std::int64_t position_end = kNoPositionEnd;
  TensorView table;      ///< [positions, D] f32/f64: cos(0..D/2-1) then sin, from rope_table
  bool inverse = false;  ///< rotate back: the backward pass
};

/// Fills [positions, D]: angle(p, i) = p * theta^(-2i/D), computed in double.
void rope_table(const Stream& stream, double theta, const TensorView& table);
void rope(const Stream& stream, const Rope& args);

}  // namespace choir::ops
