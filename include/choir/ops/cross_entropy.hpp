#pragma once
// Softmax cross-entropy, loss and gradient in one pass over the logits.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// losses[r] = -log softmax(logits[r])[targets[r]], 0 where the target is negative (ignored).
/// With `write_gradient` the logits are overwritten by d(scale * sum of losses)/d logits.
struct CrossEntropy {
  TensorView logits;   ///< [N, V']; columns at or beyond `vocabulary` are padding: never counted,
                       ///< their gradient is 0
  TensorView targets;  ///< [N] i32
  TensorView losses;   ///< [N] f32 (f64 for f64)
  std::int64_t vocabulary = 0;
  double scale = 1.0;                    ///< 1 / number of valid tokens of the global batch
  const double* device_scale = nullptr;  ///< device scalar that multiplies `scale`; nullptr: 1
  bool write_gradient = true;
};

void cross_entropy(const Stream& stream, const CrossEntropy& args);

}  // namespace choir::ops
