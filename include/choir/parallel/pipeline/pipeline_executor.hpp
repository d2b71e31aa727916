#pragma once
// Runs what a pipeline schedule says for one stage: computes, exchanges activations and gradients
// with the stages before and behind, and holds tensors between the actions. What is computed is the
// affair of a StageWork.
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/comm/watch/watchdog.hpp"
#include "choir/device/arena.hpp"
#include "choir/parallel/pipeline/schedule.hpp"
#include "choir/parallel/pipeline/schedule_simulation.hpp"

namespace choir {

/// What one stage computes. Chunks are those of this stage; tensors are handed over and belong to
/// whoever holds them. Calls queue their work on the main stream of the device, if it has one.
class StageWork {
 public:
  virtual ~StageWork() = default;
  /// A tensor for what the chunk receives of this micro-batch, [rows, C]: its input, or the
  /// gradient of its output. Its content does not matter.
  virtual Tensor receive_buffer(int micro_batch, int chunk, bool gradient) = 0;
  /// The output of the chunk; empty from the last virtual stage, as `input` is of the first.
  virtual Tensor forward(int micro_batch, int chunk, Tensor input) = 0;
  /// The gradient of the chunk's input; empty from the first virtual stage, as `d_output` is of the
  /// last. Without `with_weights` backward_weight() follows later. For each chunk micro-batches
  /// come in ascending order, in all four calls.
  virtual Tensor backward(int micro_batch, int chunk, Tensor d_output, bool with_weights) = 0;
  virtual void backward_weight(int micro_batch, int chunk) = 0;
};

/// How an executor does best: blocking on host memory, overlapped on device memory. `device` is
/// where the tensors are planned to be (Device::plans_for()). NCCL and the staging thread move
/// messages beside the computation, if they are posted when they are produced. MPI moves large ones
/// inside calls only. Measured on two ranks of a node, 64 KiB to 32 MiB a message: where the
/// receiver copies from the sender's memory (CMA), overlapped makes steps shorter by up to 13 %
/// (interleaved) and 26 % (GPipe), 1F1B alike; where both ends must be inside MPI, steps of 1F1B
/// get longer by up to 43 %, for then a message lies still while one end computes. Blocking
/// exchange stands where neither does, and holds the fewest tensors.
Exchange exchange_for(DeviceKind device);

/// When an action happened, in seconds since the run began. Of a computation without the wait for
/// what it needs; of a message from its posting until the stage went on without it.
struct ActionTime {
  Action action;
  double begin = 0, end = 0;
};

/// Exchanges are posted as the schedule lists them, what is joined as one exchange, and waited for
/// as Schedule::exchange says: at once (blocking), at once for what is received (buffered), or when
/// a computation needs what is received (overlapped). What is sent is held, and waited for, until
/// the next exchange but one is posted: an order of allocations and releases that is the same on
/// every device, and a deadlock only where blocking exchange would have one (validate() excludes
/// it).
class PipelineExecutor {
 public:
  struct Options {
    Watchdog* watchdog = nullptr;  ///< is told what the stage does and waits for
    Device* clock = nullptr;       ///< takes the times of actions on its main stream; null: none
    bool validated = false;        ///< the schedule has passed validate()
  };
  /// For the stage comm.rank() of as many stages as the communicator has ranks. All three are
  /// borrowed; with one stage the communicator is not used. Throws Error for a schedule that
  /// validate() refuses. Local.
  PipelineExecutor(const Schedule& schedule, Communicator& comm, const Options& options);
  PipelineExecutor(const Schedule& schedule, Communicator& comm)
      : PipelineExecutor(schedule, comm, Options{}) {}

  /// Collective over the stages. Allocates nothing but what `work` takes from its arena. `phase`
  /// ("step 12") is for the watchdog, with the time-out of each action if above 0. A CommError
  /// names phase, stage and action; the executor and the communicator are of no use after one. All
  /// exchanges are complete at the end, on a device for what is queued later.
  void run(StageWork& work, std::string_view phase = {}, double timeout_seconds = 0);

  /// Local. During run() what this stage does or waits for: "step 12: stage 1 of 4, forward of
  /// micro-batch 3, chunk 0"; otherwise empty.
  std::string_view doing() const { return running_ ? text_ : ""; }

  /// Moves what is in flight on. MPI does so inside calls only: work may call it between layers,
  /// and messages then go on beside a long computation.
  void progress();

  /// The times of the last run, in the order of the stage's list; empty without a clock. Waits for
  /// the device.
  std::span<const ActionTime> times();

 private:
  /// Joined communication: one exchange.
  struct Group {
    std::size_t begin = 0, end = 0;  ///< actions
    std::size_t first_message = 0;
    ExchangeRequest* request = nullptr;
    bool received = false;
  };
  /// What belongs to one micro-batch and chunk.
  struct Held {
    Tensor input, output, output_gradient, input_gradient;
    std::size_t input_group = 0, gradient_group = 0;  ///< that receive them
  };
  struct Stamps {
    explicit Stamps(Device& device) : begin(device), end(device) {}
    Event begin, end;
  };

  void plan_messages();
  Held& held(const Action& action, int chunks_on = 0);
  /// The tensor that a message sends or receives.
  Tensor& carried(const Action& action);
  void post(std::size_t group, StageWork& work);
  void receive(Group& group, std::size_t action);
  /// Completes the oldest exchange in flight and lets go of what it sent.
  void retire();
  void compute(std::size_t index, StageWork& work);
  Tensor perform(const Action& action, StageWork& work);
  void wait_for_input(const Action& action);
  void hand_over(const Action& action, Tensor result);
  void tell(const Action& action, bool waiting);
  void stamp_begin(std::size_t action);
  void stamp_end(std::size_t action);

  PipelineShape shape_;
  Exchange exchange_;
  int stage_;
  ActionList actions_;
  Communicator& comm_;
  Options options_;
  std::vector<Group> groups_;
  std::vector<Message> messages_;
  std::vector<Held> held_;  // [chunks, micro-batches]
  std::size_t oldest_ = 0;  ///< first group in flight
  std::size_t posted_ = 0;  ///< groups
  std::string_view phase_;
  double timeout_ = 0;
  char text_[160] = {};  ///< what is being done, for errors
  bool running_ = false;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> start_;
  std::vector<std::unique_ptr<Stamps>> stamps_;  // [actions]
  std::vector<ActionTime> times_;
};

// What the measured times of a pipeline say: how long each chunk takes, and what a stage loses to
// the bubble and to messages. These are pure and local.

/// Mean durations of the computations of each chunk of a stage, for PipelineCosts; 0 where there is
/// none.
std::vector<ChunkCost> mean_costs(std::span<const ActionTime> times, int chunks);

/// Seconds of one stage.
struct StageLoss {
  double busy = 0;     ///< computing
  double bubble = 0;   ///< idle even if messages took no time
  double exposed = 0;  ///< the rest of `makespan`: communication that nothing hides, and jitter
};
/// `chunks` are the mean costs of all virtual stages, gathered from the stages; `makespan` the
/// longest run of a stage. Exposed time is not cut at 0: it is negative by as much as the mean
/// hides of the durations.
std::vector<StageLoss> stage_losses(const Schedule& schedule, const std::vector<ChunkCost>& chunks,
                                    double makespan);

}  // namespace choir
