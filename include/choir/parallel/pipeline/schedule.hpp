#pragma once
// A pipeline schedule is data: an ordered list of actions for every stage. Generators create it,
// `validate` proves it, `simulate` times it, `draw` shows it, and one executor runs it; none of
// them depends on how the others work. Pure values and functions: no MPI, no tensors, local.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

// The model is cut into stages x chunks pieces of consecutive layers. Piece (virtual stage) chunk *
// stages + stage belongs to `stage`, so that with several chunks a micro-batch passes through the
// stages several times. Sources of the schedules: GPipe (Huang et al. 2019), 1F1B (Narayanan et al.
// 2019, PipeDream-Flush), interleaved 1F1B (Narayanan et al. 2021), ZB-H1 (Qi et al. 2024).

enum class ActionKind {
  forward,
  backward,         ///< input and weight gradients
  backward_input,   ///< B: input gradients only, weight gradients deferred
  backward_weight,  ///< W: the deferred weight gradients
  send_activation,  ///< sends the output of the chunk to the next virtual stage
  receive_activation,
  send_gradient,  ///< sends the gradient of the chunk's input to the previous virtual stage
  receive_gradient,
};
inline constexpr int kActionKinds = 8;
/// "forward", "backward_input" ...
std::string_view name_of(ActionKind kind);
inline bool is_communication(ActionKind kind) {
  return kind >= ActionKind::send_activation;
}
inline bool is_send(ActionKind kind) {
  return kind == ActionKind::send_activation || kind == ActionKind::send_gradient;
}

struct Action {
  ActionKind kind = ActionKind::forward;
  int micro_batch = 0;
  int chunk = 0;
  /// A joined communication is posted together with the action that follows, and the stage
  /// continues only when all joined actions have completed. This prevents neighbours that exchange
  /// tensors at the same time from waiting for each other (one ncclGroup, one MPI_Waitall).
  bool joined = false;
  friend bool operator==(const Action&, const Action&) = default;
};
/// "send_gradient of micro-batch 3, chunk 1"
std::string describe(const Action& action);

/// `forward_only` is for evaluation: it has no gradients, and nothing is stored for them.
enum class ScheduleKind { gpipe, one_f_one_b, interleaved, zb_h1, forward_only };
/// The names used in decks: "gpipe", "1f1b", "interleaved", "zb-h1"; and "forward-only".
std::string_view name_of(ScheduleKind kind);

struct PipelineShape {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;  ///< per stage
  int virtual_stages() const { return stages * chunks; }
  int virtual_stage(int stage, int chunk) const { return chunk * stages + stage; }
  friend bool operator==(const PipelineShape&, const PipelineShape&) = default;
};

/// The events that a communicating stage waits for.
enum class Exchange {
  blocking,    ///< sends and receives end when the message has arrived (rendezvous, no buffers)
  buffered,    ///< sends end at once, receives when the message has arrived (MPI_Isend, MPI_Recv)
  overlapped,  ///< only the computation that needs a message waits for it (MPI_Irecv ahead)
};
/// "blocking", "buffered", "overlapped"
std::string_view name_of(Exchange exchange);

/// The actions of one stage, in order.
using ActionList = std::vector<Action>;

struct Schedule {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  PipelineShape shape;
  Exchange exchange = Exchange::buffered;
  std::vector<ActionList> actions;  // [stages]
  /// Queues of the messages of a stage, as channel_of() divides them: communicators of device
  /// memory perform one exchange after the other. 0: all exchanges in flight make progress, as they
  /// do on host memory.
  int channels = 0;
};

/// Channels of the schedules of training on device memory.
inline constexpr int kMessageChannels = 4;
/// Exchanges of a channel that a stage has in flight; before it posts another one it waits for the
/// oldest, because the tensors that are sent are held until then.
inline constexpr std::size_t kOpenExchanges = 2;

/// The whole schedule, with its communication. Any number of micro-batches works, even fewer than
/// stages or a number that the stages do not divide. Throws DeckError for sizes below 1 and for
/// several chunks if the schedule has only one (gpipe, 1f1b, zb-h1). `interleaved` with one chunk
/// is 1F1B. The positions of communication suit `exchange` best and are correct under every other
/// exchange.
Schedule make_schedule(ScheduleKind kind, const PipelineShape& shape,
                       Exchange exchange = Exchange::buffered);
/// The schedule without communication.
Schedule compute_order(ScheduleKind kind, const PipelineShape& shape,
                       Exchange exchange = Exchange::buffered);

/// The most activations that `stage` ever holds in a schedule of this kind, counted in forwards of
/// one chunk and one micro-batch whose weight gradients are still to come: GPipe m, 1F1B p - stage,
/// ZB-H1 p, interleaved p (v - 1) + 2 (p - stage) - 1; never more than m v. Forward-only 0.
int promised_live(ScheduleKind kind, const PipelineShape& shape, int stage);

// Messages: their ends and their positions in the list of each stage. One function creates all
// sends and receives of every schedule from the compute order.

/// The stage at the other end of a communication of `stage`, or -1 if there is none, as for the
/// activation that enters the first virtual stage. With one stage it is the stage itself.
int peer_of(const PipelineShape& shape, int stage, const Action& action);

/// The number of the message in [0, message_count), used as a tag: unique, and the same at both
/// ends.
std::size_t message_of(const PipelineShape& shape, int stage, const Action& action);
std::size_t message_count(const PipelineShape& shape);

/// The channel of a message of `stage` in [0, channels), the same at both ends. With 2 channels,
/// activations and gradients have one each. With 4, the links between the stages also take turns,
/// so that what a stage receives does not hold up what it sends (except at the end of a ring with
/// an odd number of stages). 0 or 1: 0.
int channel_of(const PipelineShape& shape, int stage, const Action& action, int channels);

/// One past the last action that is posted together with the communication at `first`: joined
/// actions, as far as they are on the same channel.
std::size_t end_of_exchange(const Schedule& schedule, int stage, std::size_t first);

/// Adds sends and receives to a schedule. Every message is assigned an instant of the nominal
/// timeline (forward 1, backward 2 or 1 + 1, messages free). Under overlapped exchange this is the
/// instant at which it is produced; otherwise it is as late as its use allows, if possible when
/// neither end computes. Both ends list messages by that instant, so all lists follow one global
/// order: the earliest unfinished message can always proceed, whatever the real durations are. All
/// communication between two computations is joined, which only posts it earlier. Throws Error if
/// the compute order has a cycle of waits.
Schedule with_communication(const Schedule& compute_order);

/// Proves that a schedule is correct, whatever its origin. Throws Error that names the stage, the
/// action and the reason unless all of these hold:
/// - every chunk does the forward and the backward (or B, followed by W) of every micro-batch
///   exactly once (forward-only: the forward), in ascending order of micro-batches (the order in
///   which gradients are summed), each after its inputs: the receive of its input, its forward, its
///   gradient;
/// - every activation and gradient that another stage needs is sent once, after its production, and
///   nothing else is sent;
/// - messages from one stage to another arrive in the order in which the receiver lists them;
/// - it does not deadlock under blocking and under buffered exchange;
/// - no stage holds more activations than promised_live() of its kind.
void validate(const Schedule& schedule);

}  // namespace choir
