#pragma once
// The clip factor, computed where the norm is, so that no step waits for the host.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// norm[0] = sqrt(square_sum[0]); factor[0] = min(1, max_norm / (norm + 1e-6)), 1 when max_norm is
/// 0 and 0 when the norm is not finite. All f64 scalars.
void clip_factor(const Stream& stream, const TensorView& square_sum, double max_norm,
                 const TensorView& norm, const TensorView& factor);

}  // namespace choir::ops
