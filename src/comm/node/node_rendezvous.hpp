#pragma once
// Synchronisation of the ranks of a node. Each rank publishes its progress and its next call in a
// few cache lines of shared memory. There is neither an MPI call nor a lock, only a release store
// against acquire loads.
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/node/node_communicator.hpp"
#include "src/comm/node/node_windows.hpp"

namespace choir {

/// The next call of a rank, for comparison between ranks.
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

  /// Collective. `names` are the ranks of `comm` as messages call them; if empty, their numbers.
  NodeRendezvous(MPI_Comm comm, std::string label, const NodeOptions& options,
                 std::vector<int> names = {});

  /// Publishes the call with this number (1, 2, ...) and everything written before. Local.
  void arrive(std::uint64_t sequence, const NodeCall& call);
  /// Publishes that this rank's share of call `sequence` is done. Local.
  void finish(std::uint64_t sequence);
  /// True if all ranks have reached the stage of that call; their earlier writes are then visible.
  bool reached(Stage stage, std::uint64_t sequence) const;
  /// Waits for reached(). Throws CommError with the missing ranks after the timeout.
  void await(Stage stage, std::uint64_t sequence, const NodeCall& call);
  /// Called after `arrived` was reached: throws CommError if the ranks announced different calls.
  void require_same(std::uint64_t sequence, const NodeCall& call) const;

  /// One step of a wait; `idle` counts the steps without progress. MPI makes progress meanwhile,
  /// because another rank may wait for a message that this rank has sent.
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
