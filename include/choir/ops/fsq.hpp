#pragma once
// Finite scalar quantisation (Mentzer et al. 2023, arXiv 2309.15505): every number of a vector is
// squashed and rounded to one of a few levels, so that the codebook is a grid and has no
// parameters. Rows hold K vectors of as many numbers as there are levels, one for each codebook.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

struct FsqLevels {
  static constexpr int kMost = 8;
  static constexpr std::int64_t kMostCodes = 65536;  ///< so that a code fits 16 bits

  /// "8,5,5,5". Throws DeckError: no list of 1 to kMost numbers from 2 on, or a product above
  /// kMostCodes; `key` names it.
  static FsqLevels parse(std::string_view text, const std::string& key);

  std::array<std::int32_t, kMost> of{};
  int count = 0;
  /// Their product: indices are 0 to codes() - 1.
  std::int64_t codes() const;
};

/// With L levels s = (L - 1) / 2 (1 - 1e-3), o = 1/2 for even L and else 0, h = L div 2:
///   y = s tanh(x + tan(o / s)) - o,  q = rint(y),  code = q / h,
/// column c of a row has levels.of[c mod count]. (tan stands in NeMo and in the listing of the
/// paper.)
struct FsqForward {
  FsqLevels levels;
  TensorView in;     ///< [N, K count]
  TensorView codes;  ///< the same; may be the same memory
};

/// Straight through the rounding: d_in = d_codes s (1 - tanh^2(x + tan(o / s))) / h.
struct FsqBackward {
  FsqLevels levels;
  TensorView in;       ///< [N, K count], of forward
  TensorView d_codes;  ///< the same
  TensorView d_in;     ///< the same; may be the memory of either
};

/// index = sum over d of (q[d] + h[d]) times the product of the levels before d, in integers.
/// Codes that are none are taken for the nearest level.
struct FsqIndices {
  FsqLevels levels;
  TensorView codes;    ///< [N, K count]
  TensorView indices;  ///< [N, K] i32
};

/// The inverse. An index out of range: refused where the host can see it, elsewhere NaN.
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
