#pragma once
// AdamW over the buckets of a model, or this rank's slices of them: decoupled weight decay on the
// decayed range of each bucket only.
#include <functional>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/core/philox.hpp"
#include "choir/ops/step_control.hpp"
#include "choir/optim/element_spans.hpp"
#include "choir/parallel/parameter_storage.hpp"

namespace choir {

class AdamWOptimizer {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  };
  /// `seed`: of the random rounding of bf16 masters.
  AdamWOptimizer(ParameterStorage& storage, Device& device, const Options& options,
                 std::uint64_t seed);

  /// Local. What `control` (device memory) holds after ops::end_step() decides the update.
  /// `updated` hears of each bucket when its update was queued; may be empty.
  void step(const Stream& stream, const ops::StepControl* control,
            const std::function<void(const Bucket&)>& updated = {});

  /// Moments of what this rank owns of a parameter, in the gradient's type, 1-D.
  TensorView first_moment(const Parameter& parameter) const { return moment(0, parameter); }
  TensorView second_moment(const Parameter& parameter) const { return moment(1, parameter); }
  void add_to(MemoryPlan& plan) const { plan.add("optimizer moments", memory_.bytes()); }

 private:
  TensorView moment(std::int64_t which, const Parameter& parameter) const;
  TensorView moment(std::int64_t which, const Bucket& bucket) const;

  ParameterStorage* storage_;
  Options options_;
  PhiloxKey rounding_;
  std::vector<std::vector<ElementSpan>> spans_;  // of each bucket; see step()
  Buffer memory_;
  TensorView moments_;  // [2, slices of all buckets]
};

}  // namespace choir
