#pragma once
// A communicator of which only exchanges are used, for tests that replace them.
#include "choir/comm/communicator.hpp"
#include "choir/core/error.hpp"

namespace choir::test {

class ExchangeOnly : public Communicator {
 public:
  ExchangeOnly(const std::string& name, int rank, int size) : Communicator(name, rank, size) {}
  const char* transport() const override { return "null"; }
  std::unique_ptr<CommBuffer> allocate(std::size_t) override { refuse(); }
  void do_all_reduce(void*, std::size_t, DType, ReduceOp, Summation) override { refuse(); }
  void do_reduce_scatter(void*, std::size_t, DType, ReduceOp, Summation) override { refuse(); }
  void do_all_gather(void*, std::size_t, DType) override { refuse(); }
  void do_broadcast(void*, std::size_t, int) override { refuse(); }
  void do_reduce(void*, std::size_t, DType, ReduceOp, int) override { refuse(); }
  void do_scatter(const void*, const std::int64_t*, const std::int64_t*, void*, std::size_t,
                  int) override {
    refuse();
  }
  void do_gather(const void*, std::size_t, void*, const std::int64_t*, const std::int64_t*,
                 int) override {
    refuse();
  }
  void do_all_to_all(const void*, void*, std::size_t) override { refuse(); }
  void do_send(const void*, std::size_t, int, int) override { refuse(); }
  void do_receive(void*, std::size_t, int, int) override { refuse(); }
  void do_barrier() override { refuse(); }
  CommRequest& do_start_all_reduce(void*, std::size_t, DType, ReduceOp, Summation) override {
    refuse();
  }
  CommRequest& do_start_reduce_scatter(void*, std::size_t, DType, ReduceOp, Summation) override {
    refuse();
  }
  CommRequest& do_start_all_gather(void*, std::size_t, DType) override { refuse(); }
  std::unique_ptr<Communicator> duplicate(const std::string&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw CommError("not for this communicator"); }
};

}  // namespace choir::test
