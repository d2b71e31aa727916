#pragma once
// One optimizer step on this rank's share of the global batch. The same class runs on every device
// and, to plan memory and count work, on the null device with null communicators.
//
// A step is queued without reading anything back: what it decides (ops::StepControl) is decided
// where the gradients are, and copied to the host when the step is done. On the cpu the work is
// done when step() returns. Elsewhere lag() further steps may be queued before a result is read.
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/comm/watch/watchdog.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/optim/optimizer.hpp"
#include "choir/optim/trained_norm.hpp"
#include "choir/parallel/gradients/gradient_sums.hpp"
#include "choir/parallel/pipeline/pipeline_executor.hpp"
#include "choir/train/step/phase_clock.hpp"
#include "choir/train/step/rate_scales.hpp"
#include "choir/train/step/step_slot.hpp"
#include "choir/train/step/training_work.hpp"

namespace choir {

/// What is to be trained, as everybody who runs a model describes it, and how.
struct EngineOptions : ModelInstance::Options {
  EngineOptions() { training = true; }
  std::int64_t micro_batch_size = 1;  ///< B, sequences of tokens
  /// How large micro-batches of speech may be: any of these; memory is planned for each.
  std::vector<BatchShape> shapes;
  std::vector<BatchShape> evaluation_shapes;  ///< further ones, without gradients
  std::vector<std::size_t> arena_requests;    ///< as planned: see StepPlan and Arena::requests
  std::int64_t micro_batches = 1;             ///< per rank and step
  Optimizer::Options optimizer;               ///< its `scale` is set by the engine
  std::vector<RateScale> rate_scales;
  LrSchedule schedule;
  double grad_clip = 1.0;
  ops::LossScaling loss_scaling{};
  bool cuda_graph = true;  ///< where the device records graphs
  /// See GradientReducer::before_sums. Not for recorded steps: cuda_graph off.
  std::function<void(const Stream&, const Bucket&)> spoil_gradients{};
  int lag = -1;  ///< steps queued before a result is read; -1: what suits the device
  Watchdog* watchdog = nullptr;  ///< is told what a stage of a pipeline waits for
  bool time_actions = false;     ///< keep when each action of the pipeline schedule happened
};

/// Those that micro-batches may have: of token models one.
std::vector<BatchShape> shapes_of(const EngineOptions& options);

/// Equal on every rank: sums are global.
struct StepResult {
  double loss = 0;       ///< the weighted sum of the terms
  ByTerm terms;          ///< of each the mean over its targets in the global batch; 0 without any
  ByTerm targets;        ///< how many these are
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  bool updated = true;    ///< false: loss or norm was not finite, nothing was changed
  bool overflow = false;  ///< not updated, but a smaller loss scale may mend it
  double loss_scale = 1;  ///< of this step
};

/// Where the optimizer stands between steps, beside its moments.
struct UpdateState {
  std::int64_t updates = 0;
  double loss_scale = 1;        ///< of the next step
  std::int64_t good_steps = 0;  ///< updates since the scale changed
};

class Engine {
 public:
  /// Collective over the mesh. `arena_bytes` as planned; Arena::kUnbounded on the null device.
  Engine(const EngineOptions& options, Device& device, Mesh& mesh, std::size_t arena_bytes);
  /// Waits for what is in flight: it uses memory that goes with this object.
  ~Engine();

  /// j inside the rank; whole sequences in host memory that holds until the next call. Within one
  /// of the shapes of the options; a rank without work gives a batch of padding of the smallest.
  using BatchOf = std::function<ModelBatch(std::int64_t micro_batch)>;
  /// Collective. Queues `step` (from 0; it decides the learning rate). `targets`: how many count,
  /// of the global batch, for each term of the loss. At most lag() steps may be in flight before.
  /// Where work is done when the call returns, time goes to `clock`.
  void step(std::int64_t step, const BatchOf& batch_of, const ByTerm& targets, PhaseClock& clock);
  /// Local. The next step() calls `wait` once, before it changes anything that a checkpoint holds
  /// (parameters, moments, statistics): to make the stream wait for somebody who reads them, or to
  /// wait itself. On every rank alike, so that it may be collective, and throw where all do.
  void before_update(std::function<void(const Stream&)> wait) { before_update_ = std::move(wait); }
  /// Local. Waits for the oldest step in flight. Where the device keeps time itself, `clock`
  /// afterwards has the phases of that step.
  StepResult finish(PhaseClock& clock);
  int in_flight() const { return static_cast<int>(queued_ - finished_); }
  int lag() const { return lag_; }

  /// After the last finished step; what resume() takes, for checkpoints.
  const UpdateState& update_state() const { return state_; }
  /// Local, with nothing in flight: goes on from there. A constant loss scale stays what the
  /// options say.
  void resume(const UpdateState& state);

  /// Global index of this rank's micro-batch j of `step`; see Sharding::first_micro_batch.
  std::int64_t micro_batch_index(std::int64_t step, std::int64_t j) const;

  ModelInstance& instance() { return instance_; }
  const ModelInstance& instance() const { return instance_; }
  Optimizer& optimizer() { return *optimizer_; }
  const EngineOptions& options() const { return options_; }
  Mesh& mesh() { return *mesh_; }

  /// Time spent per action in the last finished step; needs time_actions.
  std::span<const ActionTime> action_times() { return executor_->times(); }
  const Schedule& schedule() const { return *schedule_; }
  /// Micro-batches of different shapes are in flight together.
  bool mixes_shapes() const { return mixes_; }

  /// Local. Inside step() on a stage of a pipeline: "step 12: stage 1 of 4, forward of micro-batch
  /// 3, chunk 0"; otherwise empty.
  std::string_view doing() const {
    return schedule_->shape.stages > 1 ? executor_->doing() : std::string_view();
  }

  /// Everything allocated so far, activations at their peak.
  MemoryPlan memory() const;
  /// Names of parameters whose gradient was not finite in the last finished step, for messages.
  std::vector<std::string> non_finite_gradients() const;
  /// "recorded after 2 steps, then replayed" ...: what train.cuda_graph does here.
  std::string graph_use() const;

 private:
  void stage(StepSlot& slot, const BatchOf& batch_of);
  template <class Work>
  void run(StepSlot& slot, const Work& work);
  void queue_work(StepSlot& slot, const BatchOf& batch_of, PhaseClock& clock);
  void forward_backward(StepSlot& slot, const BatchOf& batch_of, PhaseClock& clock);
  void enter(StepSlot& slot, PhaseClock& clock, Phase phase);
  /// [micro-batches of all ranks]
  TensorView losses_of(std::size_t term) const {
    return losses_of_term(losses_, term, instance_.loss_terms().size());
  }
  void reduce_losses();
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
  bool staged_;  // batches are copied to the device, which keeps its own time
  bool keeps_;   // batches are kept for the whole step
  bool mixes_;   // micro-batches of different shapes are in flight together
  bool graphs_;  // the work of a step is recorded and replayed
  int lag_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<GradientPath> gradients_;
  std::unique_ptr<TrainingWork> work_;
  std::unique_ptr<PipelineExecutor> executor_;
  std::unique_ptr<TrainedNorm> norm_;
  std::unique_ptr<TrustRatios> ratios_;  // LARS alone
  Buffer loss_memory_, control_;
  TensorView losses_;     // [terms, micro-batches of all ranks] f64
  TensorView loss_sums_;  // [terms] f64: their sums
  std::unique_ptr<SideStream> copies_;
  std::vector<std::unique_ptr<StepSlot>> slots_;  // lag + 1
  std::vector<std::unique_ptr<Event>> done_;      // lag + 2: one step back is still known
  std::set<std::vector<std::int64_t>> met_;       // shapes of steps, where they differ
  std::vector<PhaseSpan> spans_;
  std::int64_t queued_ = 0, finished_ = 0;
  UpdateState state_;
  char name_[32] = {};  ///< "step 12", for the executor
  std::function<void(const Stream&)> before_update_;
};

}  // namespace choir
