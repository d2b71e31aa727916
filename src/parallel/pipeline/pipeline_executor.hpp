#pragma once
// Executes the pipeline schedule of one stage: calls the computations, exchanges activations and
// gradients with the neighbouring stages, and holds tensors between the actions. The computations
// themselves are implemented by a StageWork.
#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/device/arena.hpp"
#include "choir/parallel/pipeline/schedule.hpp"
#include "src/comm/watch/watchdog.hpp"
#include "src/parallel/pipeline/schedule_simulation.hpp"

namespace choir {

/// The computations of one stage. Chunk numbers are those of this stage. Tensors are passed by
/// ownership. Calls queue their work on the main stream of the device, if it has one.
class StageWork {
 public:
  virtual ~StageWork() = default;
  /// Returns a tensor [rows, C] to receive into: the input of the chunk for this micro-batch, or
  /// the gradient of its output. Its content is undefined.
  virtual Tensor receive_buffer(int micro_batch, int chunk, bool gradient) = 0;
  /// Returns the output of the chunk. The output of the last virtual stage is empty, as is the
  /// `input` of the first.
  virtual Tensor forward(int micro_batch, int chunk, Tensor input) = 0;
  /// Returns the gradient of the chunk's input. It is empty from the first virtual stage, as is the
  /// `d_output` of the last. Without `with_weights`, backward_weight() follows later. In all four
  /// calls the micro-batches of a chunk come in ascending order.
  virtual Tensor backward(int micro_batch, int chunk, Tensor d_output, bool with_weights) = 0;
  virtual void backward_weight(int micro_batch, int chunk) = 0;
};

/// The best exchange for an executor: blocking on host memory, overlapped on device memory.
/// `device` is the kind of device that holds the tensors (Device::plans_for()). NCCL and the
/// staging thread move messages beside the computation if they are posted as soon as they are
/// produced. MPI moves large messages only inside its calls. Measured on two ranks of a node with
/// messages of 64 KiB to 32 MiB: where the receiver copies from the sender's memory (CMA),
/// overlapped shortens steps by up to 13 % (interleaved) and 26 % (GPipe), and does not change
/// 1F1B. Where both ends must be inside MPI, it lengthens steps of 1F1B by up to 43 %, because a
/// message is stuck while one end computes. Blocking exchange avoids both effects and holds the
/// fewest tensors.
Exchange exchange_for(DeviceKind device);

/// The time of an action in seconds since the run began. A computation is timed without the wait
/// for its input; a message is timed from its posting until the stage continued without it.
struct ActionTime {
  Action action;
  double begin = 0, end = 0;
};

/// Exchanges are posted in the order of the schedule, joined messages as one exchange.
/// Schedule::exchange determines the waits: immediately (blocking), immediately for receives only
/// (buffered), or when a computation needs the received tensor (overlapped). Sent tensors are held
/// until the next exchange but one of their channel is posted, and only then is their completion
/// awaited. The order
/// of allocations and releases is therefore the same on every device, and a deadlock is possible
/// only where blocking exchange would have one, which validate() excludes.
class PipelineExecutor {
 public:
  struct Options {
    Watchdog* watchdog = nullptr;  ///< is notified of every action and wait of the stage
    Device* clock = nullptr;       ///< takes the times of actions on its main stream; null: none
    bool validated = false;        ///< the schedule has passed validate()
  };
  /// The executor of stage comm.rank(); the communicator has one rank per stage. All arguments are
  /// borrowed; with one stage the communicator is not used. Throws Error for a schedule that
  /// validate() refuses. Local.
  PipelineExecutor(const Schedule& schedule, Communicator& comm, const Options& options)
      : PipelineExecutor(schedule, std::array{&comm}, options) {}
  PipelineExecutor(const Schedule& schedule, Communicator& comm)
      : PipelineExecutor(schedule, comm, Options{}) {}
  /// The same with a communicator for each of several channels of the schedule.
  PipelineExecutor(const Schedule& schedule, std::span<Communicator* const> channels,
                   const Options& options);

  /// Collective over the stages. Only `work` allocates, from its arena. `phase` ("step 12") is
  /// passed to the watchdog, with the time-out of each action if above 0. A CommError names phase,
  /// stage and action; afterwards the executor and the communicator are unusable. All exchanges are
  /// complete at the end; on a device, work queued later sees them complete.
  void run(StageWork& work, std::string_view phase = {}, double timeout_seconds = 0);

  /// Local. During run(): the current action or wait of this stage, such as "step 12: stage 1 of 4,
  /// forward of micro-batch 3, chunk 0". Otherwise empty.
  std::string_view doing() const { return running_ ? text_ : ""; }

  /// Makes progress on exchanges in flight. MPI progresses only inside its calls: if work calls
  /// this between layers, messages move during a long computation.
  void progress();

  /// Times of the last run, in the order of the stage's list; empty without a clock. Waits for the
  /// device.
  std::span<const ActionTime> times();

 private:
  /// Joined communication that forms one exchange.
  struct Group {
    std::size_t begin = 0, end = 0;  ///< actions
    std::size_t first_message = 0;
    std::size_t channel = 0;
    ExchangeRequest* request = nullptr;
    bool received = false;
  };
  /// A communicator with the exchanges in flight on it: of `posted` groups all but the first
  /// `completed`, in turns in `open`.
  struct Channel {
    Communicator* communicator;
    std::array<std::size_t, kOpenExchanges> open{};
    std::size_t posted = 0, completed = 0;
    bool busy() const { return completed < posted; }
    std::size_t& group(std::size_t number) { return open[number % open.size()]; }
  };
  /// Tensors of one micro-batch and chunk.
  struct Held {
    Tensor input, output, output_gradient, input_gradient;
    std::size_t input_group = 0, gradient_group = 0;  ///< groups that receive them
  };
  struct Stamps {
    explicit Stamps(Device& device) : begin(device), end(device) {}
    Event begin, end;
  };

  void plan_messages(const Schedule& schedule);
  Held& held(const Action& action, int chunks_on = 0);
  /// The tensor that a message sends or receives.
  Tensor& carried(const Action& action);
  void post(std::size_t group, StageWork& work);
  void receive(Group& group, std::size_t action);
  /// Completes the oldest exchange in flight on a channel and releases the tensors that it sent.
  void retire(Channel& channel);
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
  std::vector<Channel> channels_;
  Options options_;
  std::vector<Group> groups_;
  std::vector<Message> messages_;
  std::vector<Held> held_;  // [chunks, micro-batches]
  std::size_t posted_ = 0;  ///< groups
  std::string_view phase_;
  double timeout_ = 0;
  char text_[160] = {};  ///< the current action, for errors
  bool running_ = false;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> start_;
  std::vector<std::unique_ptr<Stamps>> stamps_;  // [actions]
  std::vector<ActionTime> times_;
};

// Evaluation of the measured times of a pipeline: the duration of each chunk, and the time that a
// stage loses to the bubble and to messages. These functions are pure and local.

/// Mean durations of the computations of each chunk of a stage, for PipelineCosts; 0 if a chunk has
/// none.
std::vector<ChunkCost> mean_costs(std::span<const ActionTime> times, int chunks);

/// Seconds of one stage.
struct StageLoss {
  double busy = 0;     ///< computing
  double bubble = 0;   ///< idle even if messages took no time
  double exposed = 0;  ///< the rest of `makespan`: communication that is not hidden, and jitter
};
/// `chunks` are the mean costs of all virtual stages, gathered from the stages; `makespan` is the
/// longest run of a stage. Exposed time is not clamped at 0: it becomes negative by the variation
/// of the durations that the mean hides.
std::vector<StageLoss> stage_losses(const Schedule& schedule, const std::vector<ChunkCost>& chunks,
                                    double makespan);

}  // namespace choir
