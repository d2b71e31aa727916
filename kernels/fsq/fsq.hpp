#pragma once
// Finite scalar quantisation (Mentzer et al. 2023, arXiv 2309.15505): every number of a vector is
// squashed and rounded to one of a few levels, so that the codebook is a grid without parameters. A
// row holds K vectors, one per codebook, each with one number per entry of the levels. The CPU
// computes in f64 for all types, so that its codes equal those of the reference. A GPU computes in
// f32, where a number within rounding of a threshold may end up on the other side. Floor per
// element: forward 2 transfers, backward 3, and a tanh; indices and codes read or write an integer
// per few elements. A row has some tens of numbers, which is small compared with the products
// around it.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

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

namespace choir {

/// The constants of the formulas for the levels of one number.
struct FsqNumber {
  double scale = 0, offset = 0, shift = 0;  ///< s, o, tan(o / s)
  std::int32_t half = 0, levels = 0;        ///< h, L
};
struct FsqNumbers {
  FsqNumber of[ops::FsqLevels::kMost];
  int count = 0;
};
FsqNumbers fsq_numbers(const ops::FsqLevels& levels);

namespace cpu {
template <class T>
void fsq_forward(const ops::FsqForward& args);
template <class T>
void fsq_backward(const ops::FsqBackward& args);
template <class T>
void fsq_indices(const ops::FsqIndices& args);
template <class T>
void fsq_codes(const ops::FsqCodes& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void fsq_forward(const Stream& stream, const ops::FsqForward& args);
CHOIR_CUDA_KERNEL void fsq_backward(const Stream& stream, const ops::FsqBackward& args);
CHOIR_CUDA_KERNEL void fsq_indices(const Stream& stream, const ops::FsqIndices& args);
CHOIR_CUDA_KERNEL void fsq_codes(const Stream& stream, const ops::FsqCodes& args);
}  // namespace cuda

namespace ref {
/// f64.
void fsq_forward(const ops::FsqForward& args);
void fsq_backward(const ops::FsqBackward& args);
void fsq_indices(const ops::FsqIndices& args);
void fsq_codes(const ops::FsqCodes& args);
}  // namespace ref

}  // namespace choir
