#pragma once
// One optimizer step on this rank's share of the global batch. The same class runs on every device
// and, to plan memory and count work, on the null device with null communicators.
//
// A step is queued without reading anything back: its decisions (ops::StepControl) are made where
// the gradients are, and copied to the host when the step is done. On the CPU the work is done when
// step() returns. On other devices lag() further steps may be queued before a result is read.

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/run/model_instance.hpp"
#include "choir/run/training_data.hpp"
#include "src/comm/watch/watchdog.hpp"
#include "src/optim/averaged_weights.hpp"
#include "src/optim/optimizer.hpp"
#include "src/optim/trained_norm.hpp"
#include "src/parallel/gradients/gradient_sums.hpp"
#include "src/parallel/pipeline/pipeline_executor.hpp"
#include "src/run/stored_model.hpp"
#include "src/train/step/engine_options.hpp"
#include "src/train/step/phase_clock.hpp"
#include "src/train/step/step_slot.hpp"
#include "src/train/step/training_work.hpp"

namespace choir {

class Engine {
 public:
  /// Collective over the mesh. `arena_bytes` as planned; Arena::kUnbounded on the null device.
  Engine(const EngineOptions& options, Device& device, Mesh& mesh, std::size_t arena_bytes);
  /// Waits for steps in flight, because they use memory of this object.
  ~Engine();

  /// Returns micro-batch j of the rank: whole sequences in host memory that stays valid until the
  /// next call, in one of the shapes of the options. A rank without work returns padding of the
  /// smallest shape.
  using BatchOf = std::function<ModelBatch(std::int64_t micro_batch)>;
  /// Queues `step` (from 0; it determines the learning rate). `targets` are the numbers of targets
  /// in the global batch (see targets_of_terms()), by which losses are divided and with which those
  /// that the model counts are compared: see finish(). At most lag() steps may be in flight before.
  /// If the work is done when the call returns, its time is added to `clock`. Collective.
  void step(std::int64_t step, const BatchOf& batch_of, const StepTargets& targets,
            PhaseClock& clock);
  /// Registers `wait` for the next step(), which calls it once before it changes anything that a
  /// checkpoint stores (parameters, moments, statistics). It may make the stream wait for a reader,
  /// or wait itself. It is called on all ranks alike, so it may be collective and may throw on all
  /// ranks. Local.
  void before_update(std::function<void(const Stream&)> wait) { before_update_ = std::move(wait); }
  /// Waits for the oldest step in flight. If the device measures time itself, `clock` then has the
  /// phases of that step. Local. Throws NumericError on every rank if the model has used another
  /// number of targets than was announced; that step has not changed any parameter.
  StepResult finish(PhaseClock& clock);
  int in_flight() const { return static_cast<int>(queued_ - finished_); }
  int lag() const { return lag_; }

  /// State after the last finished step, for checkpoints; resume() takes it.
  const UpdateState& update_state() const { return state_; }
  /// Continues from a state, with no step in flight. A constant loss scale keeps the value of the
  /// options. Local.
  void resume(const UpdateState& state);

  /// Global index of this rank's micro-batch j of `step`; see Sharding::first_micro_batch.
  std::int64_t micro_batch_index(std::int64_t step, std::int64_t j) const;

  ModelInstance& instance() { return instance_; }
  const ModelInstance& instance() const { return instance_; }
  Optimizer& optimizer() { return *optimizer_; }
  /// The averages of EngineOptions::ema; nullptr without them.
  AveragedWeights* averages() const { return averages_.get(); }
  /// Puts the averages into the model, or the weights back: see AveragedWeights::exchange(). No
  /// step may be queued in between, and no checkpoint saved. Collective over the mesh.
  void exchange_averages();
  const EngineOptions& options() const { return options_; }
  Mesh& mesh() { return *mesh_; }

  /// Time spent per action in the last finished step; needs time_actions.
  std::span<const ActionTime> action_times() { return executor_->times(); }
  const Schedule& schedule() const { return *schedule_; }
  /// True if micro-batches of different shapes are in flight together.
  bool mixes_shapes() const { return mixes_; }

  /// Inside step() on a pipeline stage: "step 12: stage 1 of 4, forward of micro-batch 3, chunk 0";
  /// otherwise empty. Local.
  std::string_view doing() const {
    return schedule_->shape.stages > 1 ? executor_->doing() : std::string_view();
  }

  /// All memory allocated so far, with activations at their peak.
  MemoryPlan memory() const;
  /// Names of parameters whose gradient was not finite in the last finished step, for messages.
  std::vector<std::string> non_finite_gradients() const;
  /// Describes the use of CUDA graphs: "recorded after 2 steps, then replayed" ...
  std::string graph_use() const;

 private:
  void stage(StepSlot& slot, const BatchOf& batch_of);
  template <class Work>
  void run(StepSlot& slot, const Work& work);
  /// True if all ranks do the same with the step: `use` identifies what this one would do.
  /// Collective.
  bool agreed(std::int64_t use);
  void queue_work(StepSlot& slot, const BatchOf& batch_of, PhaseClock& clock);
  void forward_backward(StepSlot& slot, const BatchOf& batch_of, PhaseClock& clock);
  void enter(StepSlot& slot, PhaseClock& clock, Phase phase);
  [[noreturn]] void refuse(const StepSlot& slot) const;
  void settle_readers(PhaseClock& clock);
  StepSlot::Options slot_options() const;
  void report_phases(const StepSlot& slot, PhaseClock& clock);
  StepSlot& slot_of(std::int64_t step) {
    return *slots_[static_cast<std::size_t>(step) % slots_.size()];
  }
  Event& done(std::int64_t step) { return *done_[static_cast<std::size_t>(step) % done_.size()]; }
  /// Device memory.
  ops::StepControl* control() const { return static_cast<ops::StepControl*>(control_.data()); }

  EngineOptions options_;
  Mesh* mesh_;
  ModelInstance instance_;
  std::shared_ptr<const Schedule> schedule_;
  bool staged_;  // batches are copied to the device, which measures time itself
  bool keeps_;   // batches are kept for the whole step
  bool mixes_;   // micro-batches of different shapes are in flight together
  bool graphs_;  // the work of a step is recorded and replayed
  bool agrees_;  // ... if all ranks agree, because their shapes can differ
  int lag_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<AveragedWeights> averages_;
  std::unique_ptr<GradientPath> gradients_;
  std::unique_ptr<TrainingWork> work_;
  std::unique_ptr<PipelineExecutor> executor_;
  std::unique_ptr<TrainedNorm> norm_;
  Buffer control_;
  std::unique_ptr<SideStream> copies_;
  std::vector<std::unique_ptr<StepSlot>> slots_;  // lag + 1
  std::vector<std::unique_ptr<Event>>
      done_;  // lag + 2, so that the event of the step before remains
  std::set<std::vector<std::int64_t>> met_;  // shapes of earlier steps, if shapes differ
  std::vector<PhaseSpan> spans_;
  std::int64_t queued_ = 0, finished_ = 0;
  UpdateState state_;
  char name_[32] = {};  ///< "step 12", for the executor
  std::function<void(const Stream&)> before_update_;
};

}  // namespace choir
