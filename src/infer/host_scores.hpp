#pragma once
// Scores of a model in host memory, as what is decided by them reads them.
#include <functional>
#include <span>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir {

/// `from` in host memory, f64, f32, bf16 or f16; at least as many elements as `to`.
void to_floats(const TensorView& from, std::span<float> to);
void to_doubles(const TensorView& from, std::span<double> to);

/// Calls `look` with the scores in host memory: where they are, or in `memory`, which grows to the
/// most that comes. False, and nobody looks, where there are none: another stage has them or, on
/// the null device, nobody.
bool look_at_scores(Device& device, const TensorView& scores, HostBuffer& memory,
                    const std::function<void(const TensorView&)>& look);

}  // namespace choir
