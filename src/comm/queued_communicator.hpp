#pragma once
// What the communicators of device memory have in common: work is queued behind that of a stream,
// and the blocking form of a collective is the asynchronous one and a wait, which holds up the
// stream.
#include "choir/comm/communicator.hpp"
#include "choir/core/error.hpp"

namespace choir {

class QueuedCommunicator : public Communicator {
 public:
  using Communicator::Communicator;

  void do_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                     Summation order) final {
    do_start_all_reduce(data, count, dtype, op, order).wait();
  }
  void do_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                         Summation order) final {
    do_start_reduce_scatter(data, count, dtype, op, order).wait();
  }
  void do_all_gather(void* data, std::size_t count, DType dtype) final {
    do_start_all_gather(data, count, dtype).wait();
  }
  bool queues() const final { return true; }

 protected:
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  void check_rank(int peer) const {
    CHOIR_CHECK(peer >= 0 && peer < size(), "rank {} does not exist in {}", peer, name());
  }
};

}  // namespace choir
