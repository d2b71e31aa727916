#pragma once
// Finite scalar quantisation, element by element. The CPU computes in f64 for all types, so that
// its codes equal those of the reference. A GPU computes in f32, where a number within rounding of
// a threshold may end up on the other side. Floor per element: forward 2 transfers, backward 3, and
// a tanh; indices and codes read or write an integer per few elements. A row has some tens of
// numbers, which is small compared with the products around it.
#include "choir/ops/fsq.hpp"
#include "kernels/cuda_kernel.hpp"

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
