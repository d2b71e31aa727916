#pragma once
// The MPI communicator of a reader over the ranks of a choir Communicator, and waiting that leaves
// the core to the compute threads.

#include <atomic>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"

namespace choir {

class MpiGroup {
 public:
  /// Collective over `comm`.
  explicit MpiGroup(Communicator& comm);
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  MPI_Comm all() const { return all_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Collective. Splits into groups of `ranks` consecutive ranks (0: as large as possible), inside
  /// nodes if `within_node`. The caller frees the result.
  MPI_Comm split(int ranks, bool within_node) const;

  /// Collective. Sends the data of `root` to all ranks.
  void broadcast(void* data, std::size_t bytes, int root = 0) const;

  /// Collective. Replaces `values` by their sums over the ranks.
  void sum(std::span<std::int64_t> values);

  /// Completes `request` by testing and sleeping. Throws CommError once abandoned.
  void wait(MPI_Request& request) const;
  void abandon() { abandoned_ = true; }

  /// Collective. Runs `action`; if it threw on any rank, all throw the same error (see together()).
  /// Also replaces `values` by their maximum over the ranks. Ranks of a reader wait for each other
  /// here, so the flight recorder records it. A template, because a std::function would allocate
  /// for each batch.
  template <class Action>
  void agree(Action&& action, std::span<std::int64_t> values = {}) {
    std::exception_ptr failure;
    try {
      action();
    } catch (...) {
      failure = std::current_exception();
    }
    settle(failure, values);
  }

 private:
  void settle(const std::exception_ptr& failure, std::span<std::int64_t> values);
  /// Reduces `values` in place. Waiting ranks are known to the flight recorder.
  void reduce(std::span<std::int64_t> values, MPI_Op op);

  Communicator& comm_;
  MPI_Comm all_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::atomic<bool> abandoned_ = false;
  std::vector<std::int64_t> scratch_;
  // Identity in the flight recorder.
  SharedName name_;
  int place_ = -1;
  std::uint64_t id_ = 0, settled_ = 0;
};

}  // namespace choir
