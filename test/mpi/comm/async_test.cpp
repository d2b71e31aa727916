#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"
#include "test/mpi/comm/kinds.hpp"
#include "test/support/count_allocations.hpp"
#include "test/support/mpi_test.hpp"

namespace choir::test {
namespace {

class Async : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Communicator> comm = make_kind(GetParam());
  const int rank = comm->rank();
  const int size = comm->size();
  const std::size_t ranks = static_cast<std::size_t>(comm->size());

  float sum(std::size_t i) const {
    int total = 0;
    for (int p = 0; p < size; ++p) total += number(p, i);
    return static_cast<float>(total);
  }
  /// Delays the ranks by different times, because real ranks do not run in step.
  void lag() const { std::this_thread::sleep_for(std::chrono::milliseconds(3 * rank)); }
};

// Three kinds of operations of several sizes are in flight at once, with blocking ones in between,
// and ranks call test() a different number of times.
TEST_P(Async, ManyInFlight) {
  constexpr std::size_t kOps = 12;
  constexpr std::size_t kLong = 3001;
  const std::size_t stride = kLong * ranks;
  const Memory memory(*comm, kOps * stride * sizeof(float)), small(*comm, 64);
  auto* data = memory.as<float>();
  std::vector<std::size_t> counts;
  std::vector<CommRequest*> requests;
  for (std::size_t k = 0; k < kOps; ++k) {
    float* block = data + k * stride;
    const std::size_t count = k % 2 == 0 ? 13 + k : kLong - k;
    counts.push_back(count);
    for (std::size_t i = 0; i < count * ranks; ++i)
      block[i] = static_cast<float>(number(rank, i + k));
    lag();
    const Summation order = k % 4 == 1 ? Summation::tree : Summation::fast;
    if (k % 3 == 0)
      requests.push_back(&comm->start_all_reduce(block, count, DType::f32, ReduceOp::sum, order));
    if (k % 3 == 1)
      requests.push_back(
          &comm->start_reduce_scatter(block, count, DType::f32, ReduceOp::sum, order));
    if (k % 3 == 2) requests.push_back(&comm->start_all_gather(block, count, DType::f32));
    for (int t = 0; t < rank * 3; ++t) requests.front()->test();
    if (k == 5) {
      *small.as<float>() = 1;
      comm->all_reduce(small.as<float>(), 1, DType::f32, ReduceOp::sum);
      EXPECT_EQ(*small.as<float>(), static_cast<float>(size));
    }
    if (k == 7) comm->barrier();
  }
  for (CommRequest* request : requests) request->wait();
  bool ok = true;
  for (std::size_t k = 0; k < kOps; ++k) {
    const float* block = data + k * stride;
    const std::size_t count = counts[k], mine = static_cast<std::size_t>(rank) * count;
    if (k % 3 == 0)
      for (std::size_t i = 0; i < count; ++i) ok &= block[i] == sum(i + k);
    if (k % 3 == 1)
      for (std::size_t i = mine; i < mine + count; ++i) ok &= block[i] == sum(i + k);
    if (k % 3 == 2)
      for (std::size_t i = 0; i < count * ranks; ++i)
        ok &= block[i] == static_cast<float>(number(static_cast<int>(i / count), i + k));
  }
  EXPECT_ALL_RANKS(ok);
}

TEST_P(Async, TestAloneFinishesAnOperation) {
  const std::size_t count = GetParam().ends_with("tiny") ? 3000 : 300000;
  const Memory memory(*comm, count * sizeof(float));
  auto* data = memory.as<float>();
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(number(rank, i));
  CommRequest& request = comm->start_all_reduce(data, count, DType::f32, ReduceOp::sum);
  const double from = now_seconds();
  bool done = false;
  while (!(done = request.test()) && now_seconds() - from < 60) std::this_thread::yield();
  EXPECT_ALL_RANKS(done);
  request.wait();
  bool ok = true;
  for (std::size_t i = 0; i < count; ++i) ok &= data[i] == sum(i);
  EXPECT_ALL_RANKS(ok);
}

TEST_P(Async, SlotsAreReusedForEver) {
  const Memory memory(*comm, 64 * sizeof(double));
  auto* data = memory.as<double>();
  bool ok = true;
  for (int round = 0; round < 500; ++round) {
    CommRequest* requests[3];
    for (int k = 0; k < 3; ++k) {
      data[k * 8] = rank + round + k;
      requests[k] = &comm->start_all_reduce(data + k * 8, 1, DType::f64, ReduceOp::sum);
    }
    for (auto* request : requests) request->wait();
    for (int k = 0; k < 3; ++k) ok &= data[k * 8] == size * (round + k) + size * (size - 1) / 2;
  }
  EXPECT_ALL_RANKS(ok);
}

TEST_P(Async, TooManyInFlightAreRefused) {
  const Memory memory(*comm, (Communicator::kMaxInFlight + 1) * sizeof(double));
  auto* data = memory.as<double>();
  std::vector<CommRequest*> requests;
  for (int k = 0; k < Communicator::kMaxInFlight; ++k)
    requests.push_back(&comm->start_all_reduce(data + k, 1, DType::f64, ReduceOp::sum));
  EXPECT_THROW(
      comm->start_all_reduce(data + Communicator::kMaxInFlight, 1, DType::f64, ReduceOp::sum),
      Error);
  for (CommRequest* request : requests) request->wait();
  EXPECT_THROW(requests[0]->wait(), Error) << "waiting twice is a mistake";
}

// Our code allocates nothing once it is warm (MPI itself uses malloc, which does not count here).
TEST_P(Async, NothingIsAllocatedOnceWarm) {
  const Memory memory(*comm, 5000 * ranks * sizeof(float));
  auto* data = memory.as<float>();
  const auto round = [&] {
    for (const Summation order : {Summation::fast, Summation::tree}) {
      CommRequest& a = comm->start_all_reduce(data, 5000, DType::f32, ReduceOp::sum, order);
      CommRequest& b = comm->start_reduce_scatter(data, 5000, DType::f32, ReduceOp::sum, order);
      CommRequest& c = comm->start_all_gather(data, 5000, DType::f32);
      a.test();
      a.wait();
      b.wait();
      c.wait();
      comm->all_reduce(data, 5000, DType::f32, ReduceOp::sum, order);
      comm->reduce_scatter(data, 5000, DType::f32, ReduceOp::sum, order);
      comm->all_gather(data, 5000, DType::f32);
    }
    comm->broadcast(data, 100, 0);
    comm->barrier();
  };
  round();
  const std::int64_t before = allocations();
  round();
  const std::int64_t after = allocations();
  EXPECT_ALL_RANKS(after == before) << after - before << " allocations";
}

INSTANTIATE_TEST_SUITE_P(Kinds, Async,
                         testing::Values("mpi", "mpi_tiny", "node", "node_outside", "two_level",
                                         "two_level_uneven", "two_level_tiny"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace choir::test
