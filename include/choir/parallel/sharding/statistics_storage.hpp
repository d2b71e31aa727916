#pragma once
// Device memory of the running statistics of this rank's norms, and how they follow the training:
// each rank keeps the statistics of its own micro-batches of a step; at the end of the step those
// of all data-parallel ranks come together, norm by norm, and are folded in, in the order of the
// global index, where the decision of the step is: nothing is read back, and the result is the same
// for every distribution of the micro-batches.
#include <cstdint>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/ops/step_control.hpp"
#include "choir/parallel/sharding/sharding.hpp"

namespace choir {

class StatisticsStorage {
 public:
  /// Local. Binds the statistics of resident norms; they are not set.
  StatisticsStorage(ParameterSet& parameters, const Precision& precision, Device& device);

  /// Local: means 0, variances 1.
  void initialise();
  /// Local, before training: room for what `micro_batches` of this rank and step leave. `sharding`
  /// must outlive this object. Every micro-batch is run in every step.
  void record(const Sharding& sharding, std::int64_t micro_batches);
  /// Collective over the data-parallel ranks, after a step was decided (ops::end_step).
  void update(const Stream& stream, const ops::StepControl* step);

  void add_to(MemoryPlan& plan) const;

 private:
  /// What all ranks have of one kind, in `shared_`: own [micro-batches, ...] in their places.
  TensorView gathered(const Stream& stream, const TensorView& own, const TensorView& all) const;

  ParameterSet* parameters_;
  Device* device_;
  DType type_;
  const Sharding* sharding_ = nullptr;
  std::int64_t resident_ = 0, widest_ = 0;  // norms here, channels of the widest
  std::int64_t micro_batches_ = 0;          // of this rank
  Buffer values_, records_;
  Buffer shared_;  // [M, 2, c], [M]: of the micro-batches of all ranks
};

}  // namespace choir
