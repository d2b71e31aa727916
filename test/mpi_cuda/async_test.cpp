// Tests of operations in flight beside the work of the main stream: an operation sees the work that
// was queued before its start, work that is queued after its wait sees the result, and nothing
// waits for more.
#include "choir/core/error.hpp"
#include "test/mpi/comm/kinds.hpp"
#include "test/mpi_cuda/device_kinds.hpp"

namespace choir::test {
namespace {

class DeviceAsync : public DeviceKinds {
 protected:
  float sum(std::size_t i) const {
    int total = 0;
    for (int p = 0; p < size(); ++p) total += number(p, i);
    return static_cast<float>(total);
  }
};

// Buckets in the order of a backward pass: each is written on the main stream, its reduction starts
// at once, and the next is written meanwhile; an optimizer reads them all afterwards.
TEST_P(DeviceAsync, BucketsInFlight) {
  constexpr std::size_t kBuckets = 12;
  std::vector<std::unique_ptr<OnDevice<float>>> buckets;
  std::vector<std::size_t> counts;
  for (std::size_t b = 0; b < kBuckets; ++b) {
    counts.push_back(b % 3 == 0 ? 7 + b : 900 * b);
    buckets.push_back(std::make_unique<OnDevice<float>>(device(), comm(), counts[b] * ranks()));
  }
  for (int step = 0; step < 3; ++step) {
    std::vector<CommRequest*> requests;
    for (std::size_t b = 0; b < kBuckets; ++b) {
      std::vector<float> values(counts[b] * ranks());
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(number(rank(), i + b + static_cast<std::size_t>(step)));
      buckets[b]->write(values);
      float* data = buckets[b]->data();
      for (CommRequest* request : requests) request->test();
      if (b % 3 == 0)
        requests.push_back(&comm().start_all_reduce(data, counts[b], DType::f32, ReduceOp::sum));
      if (b % 3 == 1)
        requests.push_back(
            &comm().start_reduce_scatter(data, counts[b], DType::f32, ReduceOp::sum));
      if (b % 3 == 2) requests.push_back(&comm().start_all_gather(data, counts[b], DType::f32));
    }
    for (CommRequest* request : requests) request->wait();
    for (auto& bucket : buckets) bucket->fetch();
    bool ok = true;
    for (std::size_t b = 0; b < kBuckets; ++b) {
      const std::vector<float> got = buckets[b]->fetched();
      const std::size_t shift = b + static_cast<std::size_t>(step), n = counts[b];
      const std::size_t mine = static_cast<std::size_t>(rank()) * n;
      if (b % 3 == 0)
        for (std::size_t i = 0; i < n; ++i) ok &= got[i] == sum(i + shift);
      if (b % 3 == 1)
        for (std::size_t i = mine; i < mine + n; ++i) ok &= got[i] == sum(i + shift);
      if (b % 3 == 2)
        for (std::size_t i = 0; i < n * ranks(); ++i)
          ok &= got[i] == static_cast<float>(number(static_cast<int>(i / n), i + shift));
    }
    EXPECT_ALL_RANKS(ok) << "step " << step;
  }
}

// A copy of the result follows the wait on the main stream, without the host.
TEST_P(DeviceAsync, ResultsFeedTheNextOperation) {
  constexpr std::size_t kCount = 3001;
  OnDevice<float> a(device(), comm(), kCount), b(device(), comm(), kCount);
  const Stream stream(device());
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(number(rank(), i));
  a.write(values);
  for (int round = 0; round < 3; ++round) {
    comm().all_reduce(a.data(), kCount, DType::f32, ReduceOp::max);
    stream.copy(b.data(), a.data(), kCount * sizeof(float));
    comm().all_reduce(b.data(), kCount, DType::f32, ReduceOp::sum);
    stream.copy(a.data(), b.data(), kCount * sizeof(float));
  }
  const std::vector<float> got = a.read();
  bool ok = true;
  for (std::size_t i = 0; i < kCount; ++i) {
    int largest = 0, scale = 1;
    for (int p = 0; p < size(); ++p) largest = std::max(largest, number(p, i));
    for (int round = 0; round < 3; ++round) scale *= size();
    ok &= got[i] == static_cast<float>(largest * scale);
  }
  EXPECT_ALL_RANKS(ok);
}

TEST_P(DeviceAsync, TooManyAndTwiceAreRefused) {
  if (size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  OnDevice<float> memory(device(), comm(), 1);
  memory.write({1});
  std::vector<CommRequest*> requests;
  for (int i = 0; i < Communicator::kMaxInFlight; ++i)
    requests.push_back(&comm().start_all_reduce(memory.data(), 1, DType::f32, ReduceOp::max));
  bool refused = false;
  try {
    comm().start_all_reduce(memory.data(), 1, DType::f32, ReduceOp::max);
  } catch (const Error&) {
    refused = true;
  }
  for (CommRequest* request : requests) request->wait();
  bool twice = false;
  try {
    requests.back()->wait();
  } catch (const Error&) {
    twice = true;
  }
  Stream(device()).synchronize();
  EXPECT_ALL_RANKS(refused && twice);
}

// An exception of the host's part, on any thread, is rethrown by wait() and by every call after it.
class StagedAsync : public DeviceAsync {};

TEST_P(StagedAsync, FailureOfTheHostComesOutOfWait) {
  if (size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  OnDevice<std::uint8_t> memory(device(), comm(), 16);
  memory.write(std::vector<std::uint8_t>(16, 1));
  std::string first, second;
  const auto words = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const CommError& error) {
      return error.what();
    }
    return "";
  };
  if (rank() == 0) comm().send(memory.data(), 5, 1, 3);
  if (rank() == 1) {
    first = words([&] { comm().receive(memory.data(), 9, 0, 3); });
    second = words([&] { comm().all_reduce(memory.data(), 9, DType::u8, ReduceOp::sum); });
  }
  EXPECT_ALL_RANKS(rank() != 1 || first.find("5 bytes from rank 0, 9 expected") != first.npos)
      << first;
  EXPECT_ALL_RANKS(rank() != 1 || second == first) << second;
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceAsync,
                         testing::Values("mpi", "node", "tiny", "waiting", "nccl"),
                         [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(Kinds, StagedAsync, testing::Values("mpi", "node", "tiny", "waiting"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace choir::test
