#pragma once
// The Euclidean norm of the whole gradient: one number over unique elements.
//
// Every logical tensor is cut into fixed chunks; chunk sums (f64) are added in a fixed tree. The
// result depends neither on ranks nor on threads nor on buckets.
#include "choir/comm/communicator.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

class GradientNorm {
 public:
  GradientNorm(const ParameterSet& parameters, Device& device);

  /// Collective over `data`, whose ranks all hold the whole reduced gradient and share the reading
  /// of it. Afterwards norm() and clip_factor() hold what ops::clip_factor says.
  void compute(const Stream& stream, Communicator& data, double max_norm);

  /// Device scalars (f64).
  TensorView norm() const { return scalars_.slice(1, 1); }
  TensorView clip_factor() const { return scalars_.slice(2, 1); }
  void add_to(MemoryPlan& plan) const { plan.add("gradient norm", memory_.bytes()); }

 private:
  const ParameterSet* parameters_;
  Buffer memory_;
  TensorView partials_;  // [chunks of all tensors]
  TensorView scalars_;   // sum of squares, norm, clip factor
};

}  // namespace choir
