#pragma once
// The exponential moving average of weights, on flat memory in one pass. Floor: 12 bytes per f32
// weight (reads average and weight, writes average), 10 for bf16 weights; 3 FLOP.

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/step_control.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// With the values of `control` after end_step(): average = weight in update `first`, the first one
/// that is averaged, and average = decay * average + (1 - decay) * weight in all others. Nothing is
/// written if the step is not applied.
struct WeightAverage {
  TensorView average;                    ///< [n] f64 with f64 weights, else f32
  TensorView weight;                     ///< [n] f64, f32 or bf16
  double decay = 0;                      ///< 0 < decay < 1
  std::int64_t first = 1;                ///< counted as StepControl::updates
  const StepControl* control = nullptr;  ///< device memory
};

/// Memory traffic: 12 bytes per f32 weight. Bandwidth bound.
void weight_average(const Stream& stream, const WeightAverage& args);

}  // namespace choir::ops

namespace choir {

namespace cpu {
void weight_average(const ops::WeightAverage& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void weight_average(const Stream& stream, const ops::WeightAverage& args);
}  // namespace cuda

namespace ref {
/// f64 averages of f64 or bf16 weights.
void weight_average(const ops::WeightAverage& args);
}  // namespace ref

}  // namespace choir
