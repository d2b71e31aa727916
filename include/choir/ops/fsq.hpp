#pragma once
// Finite scalar quantisation (Mentzer et al. 2023, arXiv 2309.15505): every number of a vector is
// squashed and rounded to one of a few levels, so that the codebook is a grid without parameters. A
// row holds K vectors, one per codebook, each with one number per entry of the levels.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

struct FsqLevels {
  static constexpr int kMost = 8;
  static constexpr std::int64_t kMostCodes = 65536;  ///< limit so that a code fits into 16 bits

  /// Parses "8,5,5,5". Throws DeckError, which names `key`, unless it is a list of 1 to kMost
  /// numbers of at least 2 with a product of at most kMostCodes.
  static FsqLevels parse(std::string_view text, const std::string& key);

  std::array<std::int32_t, kMost> of{};
  int count = 0;
  /// The product of the levels: indices are 0 to codes() - 1.
  std::int64_t codes() const;
};

/// With L levels, s = (L - 1) / 2 (1 - 1e-3), o = 1/2 for even L and otherwise 0, h = L div 2:
///   y = s tanh(x + tan(o / s)) - o,  q = rint(y),  code = q / h,
/// where column c of a row has levels.of[c mod count]. (NeMo and the listing of the paper use tan.)
struct FsqForward {
  FsqLevels levels;
  TensorView in;     ///< [N, K count]
  TensorView codes;  ///< [N, K count]; may be the same memory
};

/// Straight-through gradient of the rounding: d_in = d_codes s (1 - tanh^2(x + tan(o / s))) / h.
struct FsqBackward {
  FsqLevels levels;
  TensorView in;       ///< [N, K count], the input of forward
  TensorView d_codes;  ///< [N, K count]
  TensorView d_in;     ///< [N, K count]; may be the memory of either
};

/// index = sum over d of (q[d] + h[d]) times the product of the levels before d, in integers.
/// Invalid codes are rounded to the nearest level.
struct FsqIndices {
  FsqLevels levels;
  TensorView codes;    ///< [N, K count]
  TensorView indices;  ///< [N, K] i32
};

/// The inverse of FsqIndices. An index out of range is refused if the host can see it; otherwise it
/// gives NaN.
struct FsqCodes {
  FsqLevels levels;
  TensorView indices;  ///< [N, K] i32
  TensorView codes;    ///< [N, K count]
};

// Local.
void fsq_forward(const Stream& stream, const FsqForward& args);
void fsq_backward(const Stream& stream, const FsqBackward& args);
void fsq_indices(const Stream& stream, const FsqIndices& args);
void fsq_codes(const Stream& stream, const FsqCodes& args);

}  // namespace choir::ops
