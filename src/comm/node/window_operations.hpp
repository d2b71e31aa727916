#pragma once
// What works on the collectives in windows, one after another in the order of their starts.
#include <cstdint>

#include "src/comm/node/node_rendezvous.hpp"

namespace choir {

class WindowOperations {
 public:
  virtual ~WindowOperations() = default;

  /// Whether sums of this sort may be done in windows at all. Equal on all ranks.
  virtual bool takes(DType dtype, ReduceOp op, Summation order) const = 0;
  /// Number of the operation that begins next: 1, 2, ...
  virtual std::uint64_t next() const = 0;
  /// Local: announces it. At most Communicator::kMaxInFlight are under way, which the caller sees
  /// to.
  virtual std::uint64_t begin(const NodeCall& call) = 0;
  /// Completes all operations up to `sequence`, in the order of their starts: that is what makes
  /// waits free of deadlock, for every rank works through the same list. CommError where ranks are
  /// missing or do different things.
  virtual void complete(std::uint64_t sequence) = 0;
  /// Goes on with them for at most a piece, without waiting; true when `sequence` is complete.
  virtual bool advance(std::uint64_t sequence) = 0;
  /// Frees nothing that another rank may still use.
  virtual void abandon() = 0;
};

}  // namespace choir
