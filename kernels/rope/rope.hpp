#pragma once
// Rotary position embedding (Su et al. 2021), in place. The first R of the D features of a head
// rotate, and their pairs lie within R.

#include <vector>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/positions.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// Features that form a rotated pair: (d, d + R/2) as Llama/NeoX, or (2d, 2d + 1) as the paper.
enum class RopePairing { half_split, interleaved };

/// Lower frequencies for sequences longer than those of the model's first training. f =
/// theta^(-2i/R) becomes
///   linear  f / factor
///   llama3  f / factor if the wavelength 2 pi / f is above original / low, f if it is below
///           original / high, and in between (1-s) f / factor + s f with
///           s = (original / wavelength - low) / (high - low)  (Dubey et al. 2024)
///   yarn    r f / factor + (1-r) f, where r increases from 0 to 1 between the pairs that turn
///           beta_fast and beta_slow times within `original` positions; cosines and sines are
///           multiplied by the attention factor  (Peng et al. 2023)
///   longrope  f / divisors[i]; cosines and sines are multiplied by the attention factor
///           (Ding et al. 2024)
struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3, yarn, longrope } kind = Kind::none;
  double factor = 1;
  double original = 0;  ///< positions of the first training: llama3, yarn, longrope
  double low = 1, high = 4;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;  ///< yarn: the ends of the ramp are whole pairs
  /// 0: 0.1 ln(factor) + 1 for yarn, sqrt(1 + ln(factor) / ln(original)) for longrope.
  double attention_factor = 0;
  std::vector<double> divisors{};  ///< longrope: of the R/2 pairs
};
/// The frequency of pair i < R/2 of the R features that rotate, computed in double; pure.
double rope_frequency(double theta, const RopeScaling& scaling, std::int64_t width, std::int64_t i);
/// Factor of cosines and sines.
double rope_attention_factor(const RopeScaling& scaling);

struct Rope {
  RopePairing pairing = RopePairing::half_split;
  TensorView x;  ///< [rows, row_width]; the first `heads` heads of every row are rotated
  std::int64_t heads = 0;
  std::int64_t head_width = 0;  ///< D
  std::int64_t tokens = 1;      ///< row r holds position first_position + r % tokens
  std::int64_t first_position = 0;
  /// If not nullptr, it is added to first_position; only on cuda, where the host need not know it.
  /// The table has a row for every position that can occur.
  const std::int32_t* first_position_on_device = nullptr;
  /// Positions from here on are padding: they need no row of the table, and use the last one.
  std::int64_t position_end = kNoPositionEnd;
  TensorView table;  ///< [positions, R] f32/f64: cos(0..R/2-1) then sin, from rope_table; R <= D
  bool inverse = false;  ///< rotate the other way: the transpose, for the backward pass

  /// R; D without a table.
  std::int64_t rotated() const { return table.empty() ? head_width : table.shape.back(); }
};

/// Fills [positions, R]: angle(p, i) = p * rope_frequency(i), computed in double; row 0 is the row
/// of `first_position`.
void rope_table(const Stream& stream, double theta, const TensorView& table,
                const RopeScaling& scaling = {}, std::int64_t first_position = 0);
void rope(const Stream& stream, const Rope& args);

}  // namespace choir::ops

namespace choir {

namespace cpu {

// Rotary positions: the pair (a, b) of features becomes (a cos - b sin, b cos + a sin), with the
// angle of position and pair from a table. Floor: 2 element transfers for q and k, the table stays
// in cache; 3 FLOP.

void rope_table(double theta, const ops::RopeScaling& scaling, const TensorView& table,
                std::int64_t first_position);
template <class T>
void rope(const ops::Rope& args);
}  // namespace cpu

namespace cuda {
/// Computed by the host and copied; the host waits.
CHOIR_CUDA_KERNEL void rope_table(const Stream& stream, double theta,
                                  const ops::RopeScaling& scaling, const TensorView& table,
                                  std::int64_t first_position);
CHOIR_CUDA_KERNEL void rope(const Stream& stream, const ops::Rope& args);
}  // namespace cuda

namespace ref {
/// In f64; the angles come from theta, not from the table.
void rope(const ops::Rope& args, double theta);
}  // namespace ref

}  // namespace choir
