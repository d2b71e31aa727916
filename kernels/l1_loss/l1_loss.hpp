#pragma once
// The mean absolute error of rows, loss and gradient in one pass. The gradient of an element is one
// of three numbers and overwrites the prediction. Floor per element of 16 bits with a target of 32
// bits: 6 bytes read and 2 written.

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// losses[r] = factor * sum over c of |predicted[r, c] - target[r, c]| at valid rows and 0 at the
/// others, which are not read. Row r is position r mod tokens of sequence r div tokens, and is
/// valid below its length. With `write_gradient` the predictions are overwritten by d(scale * sum
/// of losses)/d predicted = scale factor sign(predicted - target), sign(0) = 0, and 0 in invalid
/// rows.
struct L1Loss {
  TensorView predicted;                   ///< [N, C]
  TensorView target;                      ///< [N, C] f32 (f64 for f64)
  const std::int32_t* lengths = nullptr;  ///< [N / tokens] device memory; nullptr: all rows are
                                          ///< valid
  std::int64_t tokens = 1;
  TensorView losses;                     ///< [N] f32 (f64 for f64)
  double factor = 1;                     ///< 1 / C: the mean over columns
  double scale = 1;                      ///< 1 / number of valid rows in the global batch
  const double* device_scale = nullptr;  ///< device scalar that multiplies `scale`; nullptr: 1
  bool write_gradient = true;
};

/// Local.
void l1_loss(const Stream& stream, const L1Loss& args);

}  // namespace choir::ops

namespace choir {

namespace cpu {
template <class T>
void l1_loss(const ops::L1Loss& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void l1_loss(const Stream& stream, const ops::L1Loss& args);
}  // namespace cuda

namespace ref {
/// f64.
void l1_loss(const ops::L1Loss& args);
}  // namespace ref

}  // namespace choir
