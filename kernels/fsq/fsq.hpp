#pragma once
// Finite scalar quantisation, element by element. The CPU computes in f64 whatever the type is, so
// that its codes are those of the reference; a GPU in f32, where a number within rounding of a
// threshold may fall on its other side. Floor per element: forward 2 transfers, backward 3, and a
// tanh; indices and codes read or write an integer for a few elements. A row is some tens of
// numbers: all of it is small beside the products around it.
#include "choir/ops/fsq.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

/// What the levels of one number are in its formulas.
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
