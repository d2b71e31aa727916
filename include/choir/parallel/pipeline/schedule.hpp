#pragma once
// A pipeline schedule is data: for every stage the list of what it does, in order. Generators make
// it, `validate` proves it, `simulate` times it, `draw` shows it, and one executor runs it; none of
// them knows how the others work. Pure values and functions: no MPI, no tensors, local.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

// The model is cut into stages x chunks pieces of consecutive layers. Piece (virtual stage)
// chunk * stages + stage lives on `stage`, so that with several chunks a micro-batch goes round the
// stages several times. Sources of the schedules: GPipe (Huang et al. 2019), 1F1B (Narayanan et al.
// 2019, PipeDream-Flush), interleaved 1F1B (Narayanan et al. 2021), ZB-H1 (Qi et al. 2024).

enum class ActionKind {
  forward,
  backward,         ///< input and weight gradients
  backward_input,   ///< B: input gradients only, weight gradients deferred
  backward_weight,  ///< W: the deferred weight gradients
  send_activation,  ///< the output of the chunk, to the next virtual stage
  receive_activation,
  send_gradient,  ///< the gradient of the chunk's input, to the virtual stage before
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
  /// A communication is posted together with the action that follows, and only when all that are so
  /// joined have completed does the stage go on. This is how neighbours that give each other
  /// something at the same time avoid waiting for each other (one ncclGroup, one MPI_Waitall).
  bool joined = false;
  friend bool operator==(const Action&, const Action&) = default;
};
/// "send_gradient of micro-batch 3, chunk 1"
std::string describe(const Action& action);

/// `forward_only` is for evaluation: no gradients, and nothing is kept for them.
enum class ScheduleKind { gpipe, one_f_one_b, interleaved, zb_h1, forward_only };
/// As in the deck: "gpipe", "1f1b", "interleaved", "zb-h1"; and "forward-only".
std::string_view name_of(ScheduleKind kind);

struct PipelineShape {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;  ///< per stage
  int virtual_stages() const { return stages * chunks; }
  int virtual_stage(int stage, int chunk) const { return chunk * stages + stage; }
  friend bool operator==(const PipelineShape&, const PipelineShape&) = default;
};

/// What a stage waits for when it communicates.
enum class Exchange {
  blocking,    ///< sends and receives end when the message has arrived (rendezvous, no buffers)
  buffered,    ///< sends end at once, receives when the message has arrived (MPI_Isend, MPI_Recv)
  overlapped,  ///< only the computation that needs a message waits for it (MPI_Irecv ahead)
};
/// "blocking", "buffered", "overlapped"
std::string_view name_of(Exchange exchange);

/// What one stage does, in order.
using ActionList = std::vector<Action>;

struct Schedule {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  PipelineShape shape;
  Exchange exchange = Exchange::buffered;
  std::vector<ActionList> actions;  // [stages]
};

/// The whole schedule, with its communication. Any number of micro-batches works, also fewer than
/// stages, also one that the stages do not divide. Throws DeckError for sizes below 1 and for
/// several chunks where the schedule has one (gpipe, 1f1b, zb-h1). `interleaved` with one chunk is
/// 1F1B. Communication stands where it suits `exchange` best, and is right under every other.
Schedule make_schedule(ScheduleKind kind, const PipelineShape& shape,
                       Exchange exchange = Exchange::buffered);
/// Only its computations.
Schedule compute_order(ScheduleKind kind, const PipelineShape& shape,
                       Exchange exchange = Exchange::buffered);

/// Most activations that `stage` ever holds in a schedule of this kind, counted in forwards of one
/// chunk and one micro-batch whose weight gradients are still to come: GPipe m, 1F1B p - stage,
/// ZB-H1 p, interleaved p (v - 1) + 2 (p - stage) - 1; never more than m v. Forward-only 0.
int promised_live(ScheduleKind kind, const PipelineShape& shape, int stage);

// Messages: who talks to whom, and where in each stage's list. All sends and receives of every
// schedule come from one function, which reads them off the compute order.

/// The stage at the other end of a communication of `stage`; -1 if there is none, as for the
/// activation that enters the first virtual stage. With one stage it is the stage itself.
int peer_of(const PipelineShape& shape, int stage, const Action& action);

/// Number of the message in [0, message_count): the same at both ends, no two alike (a tag).
std::size_t message_of(const PipelineShape& shape, int stage, const Action& action);
std::size_t message_count(const PipelineShape& shape);

/// The schedule with its sends and receives. Every message gets one instant of the nominal timeline
/// (forward 1, backward 2 or 1 + 1, messages free): under overlapped exchange when it is produced,
/// else as late as its use allows, if possible when neither end computes. Both ends list it by that
/// instant, so all lists follow one global order: the earliest message not yet done can always
/// proceed, whatever the real durations are. All communication between two computations is joined,
/// which only posts it earlier. Throws Error when the compute order waits for itself.
Schedule with_communication(const Schedule& compute_order);

/// The proof that a schedule is right, whoever made it. Throws Error that names the stage, the
/// action and the reason unless:
/// - every chunk does the forward and the backward (or B, and W behind it) of every micro-batch
///   exactly once (of forward-only: the forward), in ascending order of micro-batches (the order in
///   which gradients are summed), each behind what it needs: the receive of its input, its forward,
///   its gradient;
/// - every activation and gradient that another stage needs is sent once, behind its production,
///   and nothing else is;
/// - what a stage sends to another arrives in the order in which that one receives;
/// - it does not deadlock under blocking and under buffered exchange;
/// - no stage holds more activations than promised_live() of its kind.
void validate(const Schedule& schedule);

}  // namespace choir
