#pragma once
// A pipeline schedule is data: for every stage the list of what it does, in order. Generators make
// it, `validate` proves it, `simulate` times it, `draw` shows it, and one executor runs it; none of
// them knows how the others work. Pure values and functions: no MPI, no tensors, local.
//
// The model is cut into stages x chunks pieces of consecutive layers. Piece (virtual stage)
// chunk * stages + stage lives on `stage`, so that with several chunks a micro-batch goes round the
// stages several times. Sources of the schedules: GPipe (Huang et al. 2019), 1F1B (Narayanan et al.
// 2019, PipeDream-Flush), interleaved 1F1B (Narayanan et al. 2021), ZB-H1 (Qi et al. 2024).
#include <string>
#include <string_view>
#include <vector>

namespace choir {

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
  /// Of a communication: is posted together with the action that follows, and only when all that
  /// are so joined have completed does the stage go on. This is how neighbours that give each other
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

}  // namespace choir
