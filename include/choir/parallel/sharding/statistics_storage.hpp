#pragma once
// Device memory of the running statistics of this rank's norms, and their update. Each rank keeps
// the statistics of its own micro-batches of a step. At the end of the step those of all
// data-parallel ranks are gathered norm by norm and folded in, in the order of the global index, on
// the device, where the step is decided. Nothing is read back, and the result is the same for every
// distribution of the micro-batches.
#include <cstdint>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/ops/step_control.hpp"
#include "choir/parallel/sharding/sharding.hpp"

namespace choir {

class StatisticsStorage {
 public:
  /// Local. Binds the statistics of resident norms without initialising them.
  StatisticsStorage(ParameterSet& parameters, const Precision& precision, Device& device);

  /// Local: sets means to 0 and variances to 1.
  void initialise();
  /// Local, before training: allocates the records of `micro_batches` per rank and step. `sharding`
  /// must outlive this object. Every micro-batch is run in every step.
  void record(const Sharding& sharding, std::int64_t micro_batches);
  /// Collective over the data-parallel ranks, after the step was decided (ops::end_step).
  void update(const Stream& stream, const ops::StepControl* step);

  void add_to(MemoryPlan& plan) const;

 private:
  /// Copies this rank's own entries [micro-batches, ...] to their positions among those of all
  /// ranks.
  void insert(const Stream& stream, const TensorView& own, const TensorView& all) const;

  ParameterSet* parameters_;
  Device* device_;
  DType type_;
  const Sharding* sharding_ = nullptr;
  std::int64_t resident_ = 0, widest_ = 0;  // resident norms, channels of the widest
  std::int64_t micro_batches_ = 0;          // per rank
  Buffer values_, records_;
  // Norms whose records are summed over the data ranks in one message; the frames of the
  // micro-batches are in the first one.
  std::vector<std::vector<const RunningStatistics*>> messages_;
  Buffer shared_;  // [M], and [M, 2, c] for each norm of a message: micro-batches of all ranks
};

}  // namespace choir
