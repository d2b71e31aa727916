#include "src/comm/node/node_rendezvous.hpp"

#include <sched.h>

#include <array>
#include <new>

#include "choir/core/error.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace choir {
namespace {

void pause_processor() {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

// Spins before the core is yielded: some 20 us if each rank has its own core. A rank that is bound
// to one core cannot see whether others share it, so only unbound ranks profit from the count of
// usable cores. In doubt, yielding costs a system call of 0.3 us.
constexpr int kSpins = 400;

// Polling the network costs about as much as yielding the core a few times.
constexpr int kYieldsPerProgress = 8;

}  // namespace

NodeRendezvous::NodeRendezvous(MPI_Comm comm, std::string label, const NodeOptions& options,
                               std::vector<int> names)
    : comm_(comm),
      window_(comm, label, sizeof(Board), options.timeout_seconds),
      label_(std::move(label)),
      names_(std::move(names)),
      timeout_(options.timeout_seconds) {
  MPI_Comm_rank(comm, &rank_);
  MPI_Comm_size(comm, &size_);
  const int cores = usable_cores();
  spins_ = cores == 1 || cores >= size_ ? kSpins : 0;
  new (window_.block(rank_)) Board();
  mpi_check(MPI_Barrier(comm), "MPI_Barrier", label_);
}

void NodeRendezvous::arrive(std::uint64_t sequence, const NodeCall& call) {
  Board& mine = board(rank_);
  mine.calls[sequence % kCalls] = call;
  mine.arrived.store(sequence, std::memory_order_release);
}

void NodeRendezvous::finish(std::uint64_t sequence) {
  board(rank_).done.store(sequence, std::memory_order_release);
}

std::uint64_t NodeRendezvous::value(Stage stage, int rank) const {
  const Board& theirs = board(rank);
  return (stage == Stage::arrived ? theirs.arrived : theirs.done).load(std::memory_order_acquire);
}

bool NodeRendezvous::reached(Stage stage, std::uint64_t sequence) const {
  for (int p = 0; p < size_; ++p)
    if (value(stage, p) < sequence) return false;
  return true;
}

void NodeRendezvous::pause(int idle) const {
  if (idle <= spins_) return pause_processor();
  if (idle % kYieldsPerProgress == 0) {
    int found = 0;
    mpi_check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, MPI_STATUS_IGNORE),
              "MPI_Iprobe", label_);
  }
  sched_yield();
}

void NodeRendezvous::await(Stage stage, std::uint64_t sequence, const NodeCall& call) {
  int idle = 0;
  double deadline = 0;
  for (int p = 0; p < size_; ++p) {
    while (value(stage, p) < sequence) {
      pause(++idle);
      if (timeout_ <= 0 || idle % 64 != 0) continue;
      const double now = now_seconds();
      if (deadline == 0) deadline = now + timeout_;
      if (now > deadline) time_out(stage, sequence, call);
    }
  }
}

void NodeRendezvous::time_out(Stage stage, std::uint64_t sequence, const NodeCall& call) const {
  std::string missing;
  int count = 0;
  for (int p = 0; p < size_; ++p) {
    if (value(stage, p) >= sequence) continue;
    missing += (count++ == 0 ? "" : ", ") + std::to_string(name(p));
  }
  throw CommError(
      fmt::format("{} {} waited {} for rank{} {}, which {} not {}", label_,
                  describe(sequence, call), format_duration(timeout_), plural(count), missing,
                  count == 1 ? "has" : "have",
                  stage == Stage::arrived ? "arrived" : "finished their share"),
      "look for an earlier error of that rank, or a rank that is stopped, swapped out or in "
      "another phase");
}

void NodeRendezvous::require_same(std::uint64_t sequence, const NodeCall& call) const {
  for (int p = 0; p < size_; ++p) {
    const NodeCall& theirs = board(p).calls[sequence % kCalls];
    if (theirs == call) continue;
    throw CommError(
        fmt::format("{}: ranks disagree: rank {} calls {}, rank {} calls {}", label_, name(rank_),
                    describe(sequence, call), name(p), describe(sequence, theirs)),
        "every rank of a communicator makes the same calls in the same order");
  }
}

std::string NodeRendezvous::describe(std::uint64_t sequence, const NodeCall& call) const {
  constexpr std::array<const char*, 4> kNames{"barrier", "all_reduce", "reduce_scatter",
                                              "all_gather"};
  const char* name = kNames[static_cast<std::size_t>(call.kind)];
  if (call.kind == NodeCall::Kind::barrier) return fmt::format("{} (call {})", name, sequence);
  return fmt::format("{} of {} {} at byte {} of buffer {} (call {})", name, call.count,
                     name_of(call.dtype), call.offset, call.window, sequence);
}

}  // namespace choir
