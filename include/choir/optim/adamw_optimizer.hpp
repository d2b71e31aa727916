#pragma once
// AdamW over the buckets of a model: decoupled weight decay on the decayed range of each bucket
// only.
#include "choir/core/memory_plan.hpp"
#include "choir/parallel/parameter_storage.hpp"

namespace choir {

class AdamWOptimizer {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  };
  AdamWOptimizer(ParameterStorage& storage, Device& device, const Options& options);

  /// Local. `step` counts from 1; `scale` is the device scalar that multiplies the gradient.
  void step(const Stream& stream, std::int64_t step, double learning_rate, const double* scale);

  /// Moments of one parameter, in the master type and logical shape.
  TensorView first_moment(const Parameter& parameter) const { return moment(0, parameter); }
  TensorView second_moment(const Parameter& parameter) const { return moment(1, parameter); }
  void add_to(MemoryPlan& plan) const { plan.add("optimizer moments", memory_.bytes()); }

 private:
  TensorView moment(std::int64_t which, const Parameter& parameter) const;

  ParameterStorage* storage_;
  Options options_;
  Buffer memory_;
  TensorView moments_;  // [2, flat size]
};

}  // namespace choir
