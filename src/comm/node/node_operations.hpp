#pragma once
// Collectives in windows, one after another in the order of their starts: their interface, and the
// operations of a single node. Every rank announces a collective when it starts it, and does its
// share in steps once all ranks have announced it.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/node/node_windows.hpp"

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

class NodeOperations final : public WindowOperations {
 public:
  /// Collective over `comm`, in which this is `rank` of `size`; `label` is for messages.
  NodeOperations(MPI_Comm comm, int rank, int size, const std::string& label,
                 const NodeOptions& options, std::shared_ptr<const NodeWindows> windows);

  bool takes(DType, ReduceOp, Summation) const override { return true; }
  std::uint64_t next() const override { return next_; }
  std::uint64_t begin(const NodeCall& call) override;
  void complete(std::uint64_t sequence) override;
  bool advance(std::uint64_t sequence) override;
  void abandon() override { meeting_.abandon(); }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

  /// `cursor` counts the finished bytes of this rank's share.
  struct Operation {
    NodeCall call;
    std::uint64_t sequence = 0;
    std::size_t cursor = 0;
    bool checked = false, shared = false;
  };
  Operation& at(std::uint64_t sequence) { return ring_[sequence % ring_.size()]; }
  void check_same(Operation& operation);
  void publish(Operation& operation);
  bool work(Operation& operation, std::size_t budget);
  bool reduce(Operation& operation, std::size_t budget);
  bool collect(Operation& operation, std::size_t budget);

  int rank_, size_;
  std::size_t streaming_bytes_;
  NodeRendezvous meeting_;
  std::shared_ptr<const NodeWindows> windows_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  std::array<Operation, Communicator::kMaxInFlight> ring_;
  std::uint64_t next_ = 1;
  std::uint64_t oldest_ = 1;  ///< first that is not complete
};

}  // namespace choir
