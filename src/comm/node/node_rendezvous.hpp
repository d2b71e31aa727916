#pragma once
// Where the ranks of a node meet: each has a few cache lines in shared memory in which it says how
// far it has come and what it is about to do. There is neither an MPI call nor a lock, only a
// release store against acquire loads.
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/node/node_communicator.hpp"
#include "src/comm/node/node_windows.hpp"

namespace choir {

/// What one rank is about to do, for all to compare.
struct NodeCall {
  enum class Kind : std::uint8_t { barrier, all_reduce, reduce_scatter, all_gather };
  std::uint64_t window = 0, offset = 0, count = 0;
  Kind kind = Kind::barrier;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;
  friend bool operator==(const NodeCall&, const NodeCall&) = default;
};

class NodeRendezvous {
 public:
  enum class Stage { arrived, done };

  /// Collective. `names`: what messages call the ranks of `comm`; empty: by their numbers.
  NodeRendezvous(MPI_Comm comm, std::string label, const NodeOptions& options,
                 std::vector<int> names = {});

  /// Local: publishes the call with this number (1, 2, ...) and everything written before.
  void arrive(std::uint64_t sequence, const NodeCall& call);
  /// Local: publishes that this rank's share of call `sequence` is done.
  void finish(std::uint64_t sequence);
  /// True when all ranks have reached the stage of that call; what they wrote before is then
  /// visible.
  bool reached(Stage stage, std::uint64_t sequence) const;
  /// Waits for reached(); CommError after the time-out, naming who is missing.
  void await(Stage stage, std::uint64_t sequence, const NodeCall& call);
  /// After `arrived` was reached: CommError when the ranks are about to do different things.
  void require_same(std::uint64_t sequence, const NodeCall& call) const;

  /// One moment of a wait, the `idle`-th in which nothing happened. MPI goes on meanwhile: what
  /// this rank has sent elsewhere may be what another one waits for.
  void pause(int idle) const;
  [[noreturn]] void time_out(Stage stage, std::uint64_t sequence, const NodeCall& call) const;

  std::string describe(std::uint64_t sequence, const NodeCall& call) const;
  void abandon() { window_.abandon(); }

 private:
  static constexpr std::uint64_t kCalls = Communicator::kMaxInFlight;
  struct Board {
    alignas(64) std::atomic<std::uint64_t> arrived{0};
    alignas(64) std::atomic<std::uint64_t> done{0};
    alignas(64) NodeCall calls[kCalls];
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  Board& board(int rank) const { return *reinterpret_cast<Board*>(window_.block(rank)); }
  std::uint64_t value(Stage stage, int rank) const;
  int name(int rank) const {
    return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)];
  }

  MPI_Comm comm_;
  SharedWindow window_;
  std::string label_;
  std::vector<int> names_;
  double timeout_;
  int rank_ = 0, size_ = 1, spins_ = 0;
};

}  // namespace choir
