#pragma once
// Scores of a model in host memory, for decisions such as the choice of tokens.
#include <functional>
#include <span>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir {

/// Converts `from`, which is in host memory (f64, f32, bf16 or f16) and has at least as many
/// elements as `to`.
void to_floats(const TensorView& from, std::span<float> to);
void to_doubles(const TensorView& from, std::span<double> to);

/// Calls `look` with the scores in host memory: in place, or copied to `memory`, which grows to the
/// largest size needed. Returns false without a call if this rank has no scores: another stage has
/// them, or no rank on the null device.
bool look_at_scores(Device& device, const TensorView& scores, HostBuffer& memory,
                    const std::function<void(const TensorView&)>& look);

}  // namespace choir
