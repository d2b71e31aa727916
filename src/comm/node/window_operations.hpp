#pragma once
// Interface of the collectives in windows, which proceed one after another in the order of their
// starts.
#include <cstdint>

#include "src/comm/node/node_rendezvous.hpp"

namespace choir {

class WindowOperations {
 public:
  virtual ~WindowOperations() = default;

  /// True if such sums can be computed in windows. Equal on all ranks.
  virtual bool takes(DType dtype, ReduceOp op, Summation order) const = 0;
  /// Number of the next operation: 1, 2, ...
  virtual std::uint64_t next() const = 0;
  /// Announces the call. The caller ensures that at most Communicator::kMaxInFlight are in flight.
  /// Local.
  virtual std::uint64_t begin(const NodeCall& call) = 0;
  /// Completes all operations up to `sequence` in the order of their starts. Every rank works
  /// through the same list, so waits cannot deadlock. Throws CommError if ranks are missing or
  /// their calls differ.
  virtual void complete(std::uint64_t sequence) = 0;
  /// Continues the operations by at most one step, without waiting. Returns true if `sequence` is
  /// complete.
  virtual bool advance(std::uint64_t sequence) = 0;
  /// Prevents memory that another rank may still use from being freed.
  virtual void abandon() = 0;
};

}  // namespace choir
