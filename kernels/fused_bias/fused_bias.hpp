#pragma once
// Gradients of activations, gates and dropout whose kernels also add the gradient of a bias. Where
// a linear layer lies below such an operation, the gradient that the operation writes is that of
// the layer's output, and the gradient of the layer's bias is the sum of its rows. A separate
// kernel would read the whole gradient once more. Floors: those of the operations without sums
// (kernels/activation/activation.hpp, kernels/dropout/dropout.hpp), and 8 bytes per column and
// block of rows for partial sums.
//
// The CPU, and the GPU for rows that are not whole packs of 16 bytes, run the operation and then
// ops::bias_gradient(). The GPU adds the values as they are stored, in blocks of rows that depend
// on the shape alone, so the result is deterministic.

#include "choir/ops/activation.hpp"
#include "kernels/activation/activation.hpp"
#include "kernels/dropout/dropout.hpp"
#include "kernels/sums/sums.hpp"

namespace choir::ops {

/// The gradient of the bias below an operation.
struct BiasSums {
  TensorView d_bias;     ///< [C] gradient dtype (f32, or f64), +=; C: columns that are written
  TensorView workspace;  ///< u8, bias_gradient_workspace(stream, N, C) bytes
};

/// activation_backward() of a kind with one input; d_x [N, C] may be d_y.
void activation_backward(const Stream& stream, Activation kind, const TensorView& x,
                         const TensorView& d_y, const TensorView& d_x, const BiasSums& bias);
/// glu_backward(); d_x [N, C].
void glu_backward(const Stream& stream, const TensorView& x, const TensorView& d_y,
                  const TensorView& d_x, const std::int32_t* lengths, std::int64_t tokens,
                  const BiasSums& bias);
/// dropout() of a gradient; out [N, C].
void dropout(const Stream& stream, const Dropout& args, const BiasSums& bias);

}  // namespace choir::ops

namespace choir::cuda {

// They return false, and do nothing, for tensors that cannot be read in packs.
CHOIR_CUDA_KERNEL bool activation_backward(const Stream& stream, ops::Activation kind,
                                           const TensorView& x, const TensorView& d_y,
                                           const TensorView& d_x, const ops::BiasSums& bias);
CHOIR_CUDA_KERNEL bool glu_backward(const Stream& stream, const TensorView& x,
                                    const TensorView& d_y, const TensorView& d_x,
                                    const std::int32_t* lengths, std::int64_t tokens,
                                    const ops::BiasSums& bias);
CHOIR_CUDA_KERNEL bool dropout(const Stream& stream, const ops::Dropout& args,
                               const ops::BiasSums& bias);

}  // namespace choir::cuda
