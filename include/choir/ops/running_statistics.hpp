#pragma once
// Running mean and variance of batch normalisation (Ioffe & Szegedy 2015) after a step.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/step_control.hpp"

namespace choir::ops {

/// Applies micro-batch after micro-batch, from the first on: running = (1 - momentum) running +
/// momentum * statistics of the micro-batch, in f64, rounded once at the end. A micro-batch of
/// fewer than two frames has no unbiased variance and changes nothing. All tensors have one type,
/// f32 or f64.
struct RunningUpdate {
  TensorView records;         ///< [M, 2, C]: mean, unbiased variance of each micro-batch
  TensorView frames;          ///< [M]: unmasked frames
  TensorView mean, variance;  ///< [C], updated
  double momentum = 0.1;
  /// Device memory. In a step that is not applied nothing changes; nullptr: always applied.
  const StepControl* control = nullptr;
};

/// Memory traffic: the records once.
void update_running_statistics(const Stream& stream, const RunningUpdate& args);

}  // namespace choir::ops
