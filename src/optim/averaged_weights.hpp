#pragma once
// The exponential moving average of the weights of a run (train.ema): the slices of it that this
// rank keeps, and its exchange with the weights for an evaluation.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/ops/step_control.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"

namespace choir {

/// After every applied step e = decay * e + (1 - decay) * w, with e = w after the first one (as
/// torch.optim.swa_utils with get_ema_multi_avg_fn), for every trained parameter and for the
/// running statistics of norms. The average has the type of the gradients (f32; f64 with fp64),
/// also beside bf16 masters, and is divided among ranks like the moments. Each element is computed
/// from one master, so all layouts have the same bits if their masters have.
class AveragedWeights {
 public:
  /// The memory of offloaded averages belongs to the storage (OffloadOptions::average). Local.
  AveragedWeights(ParameterStorage& storage, Device& device, double decay);

  /// The averages begin with the first update after `updates`. Local, before a step is queued.
  void begin_after(std::int64_t updates) { first_ = updates + 1; }
  /// The update that is averaged first; checkpoints contain it.
  std::int64_t& first() { return first_; }
  std::int64_t first() const { return first_; }

  /// Averages everything that is in device memory, after the update of the masters and of the
  /// statistics. Local.
  void update(const Stream& stream, const ops::StepControl* control) const;
  /// Averages a chunk of offloaded state, which is in device memory now. Local.
  void update(const Stream& stream, const ops::StepControl* control, const TensorView& average,
              const TensorView& weight) const;

  /// Puts the averages into the masters and the running statistics, and keeps these meanwhile; the
  /// second call undoes the first, bit by bit. bf16 masters take the nearest values. No step may be
  /// in flight, nothing may read the masters, and ModelInstance::publish() must follow. Local.
  void exchange(const Stream& stream);
  bool exchanged() const { return exchanged_; }

  /// The average of the part of a trained parameter that this rank owns, 1-D; in host memory if
  /// ParameterStorage::offloaded().
  TensorView average(const Parameter& parameter) const;
  struct Statistics {
    TensorView mean, variance;
  };
  /// The averages of RunningStatistics, in their order; empty views where the norm is not resident.
  const std::vector<Statistics>& statistics() const { return statistics_; }

  /// Offloaded averages are counted by the storage.
  void add_to(MemoryPlan& plan) const;

 private:
  bool outside() const { return storage_->offloaded() != nullptr; }
  /// True if masters have another type than the averages and are copied aside in an exchange.
  bool narrow() const { return storage_->precision().master != storage_->precision().gradient; }
  TensorView slice_in(const TensorView& slices, const Bucket& bucket) const;
  void swap_on_device(const Stream& stream, const TensorView& a, const TensorView& b) const;
  void exchange_on_device(const Stream& stream, const Bucket& bucket) const;
  void exchange_outside(const Bucket& bucket) const;

  ParameterStorage* storage_;
  Device* device_;
  double decay_;
  std::int64_t first_ = 1;
  bool exchanged_ = false;
  Buffer memory_, statistics_memory_;
  TensorView averages_;  // [slices of all trained buckets], outside or not
  std::vector<Statistics> statistics_;
  // For exchanges: a chunk of device memory, and narrow masters, in host memory if outside().
  Buffer scratch_, aside_memory_;
  OffloadMemory aside_host_;
  TensorView aside_;  // [slices of all trained buckets]
};

}  // namespace choir
