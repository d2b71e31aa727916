#pragma once
// Gated linear unit (Dauphin et al. 2017): value * sigmoid(gate). Masked frames are set to zero in
// the same pass.
#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// y [N, C] = a sigmoid(g), where rows of x [N, 2C] are [a C | g C]. Row r is frame r % tokens of
/// sample r / tokens; frames >= lengths[sample] give 0 (nullptr: no frame is masked).
void glu_forward(const Stream& stream, const TensorView& x, const TensorView& y,
                 const std::int32_t* lengths = nullptr, std::int64_t tokens = 1);
/// Computes d_x [N, 2C] from d_y [N, C] and the x of forward; 0 at masked frames.
void glu_backward(const Stream& stream, const TensorView& x, const TensorView& d_y,
                  const TensorView& d_x, const std::int32_t* lengths = nullptr,
                  std::int64_t tokens = 1);

/// Sets rows of masked frames to zero, in place: x [B*tokens, C].
void mask_frames(const Stream& stream, const TensorView& x, const std::int32_t* lengths,
                 std::int64_t tokens);

}  // namespace choir::ops
