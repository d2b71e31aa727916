// Tests of exchanges of device memory beside the main stream, and of the pipeline executor on them.
#include "choir/core/error.hpp"
#include "test/mpi/comm/kinds.hpp"
#include "test/mpi_cuda/device_kinds.hpp"
#include "test/support/pipeline_case.hpp"

namespace choir::test {
namespace {

class DeviceExchange : public DeviceKinds {
 protected:
  int next() const { return (rank() + 1) % size(); }
  int before() const { return (rank() + size() - 1) % size(); }
  static std::vector<float> content(int from, std::size_t tag, std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<float>(number(from, i + 5 * tag) + 100 * from);
    return values;
  }
};

// Several messages of different sizes around the ring in both directions at once; they see the work
// that the main stream queued before, and work that it queues after the wait sees them.
TEST_P(DeviceExchange, BothNeighboursAtOnce) {
  if (size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  constexpr std::size_t kMessages = 6, kCount = 3001;
  std::vector<std::unique_ptr<OnDevice<float>>> out, in;
  std::vector<Message> messages;
  const auto count = [](std::size_t k) { return k == 3 ? 0 : kCount - 700 * (k / 2); };
  for (std::size_t k = 0; k < kMessages; ++k) {
    out.push_back(std::make_unique<OnDevice<float>>(device(), comm(), kCount));
    in.push_back(std::make_unique<OnDevice<float>>(device(), comm(), kCount));
    const int to = k % 2 == 0 ? next() : before(), from = k % 2 == 0 ? before() : next();
    const int tag = static_cast<int>(k / 2);
    messages.push_back({true, out[k]->data(), count(k) * sizeof(float), to, tag});
    messages.push_back({false, in[k]->data(), count(k) * sizeof(float), from, tag});
  }
  for (int round = 0; round < 3; ++round) {
    bool ok = true;
    for (std::size_t k = 0; k < kMessages; ++k) out[k]->write(content(rank() + round, k, kCount));
    ExchangeRequest& request = comm().start_exchange(messages);
    request.test();
    request.wait_received();
    for (auto& memory : in) memory->fetch();
    request.wait();
    for (std::size_t k = 0; k < kMessages; ++k) {
      std::vector<float> got = in[k]->fetched();
      got.resize(count(k));
      ok &= got == content((k % 2 == 0 ? before() : next()) + round, k, count(k));
    }
    EXPECT_ALL_RANKS(ok) << "round " << round;
  }
}

// Two messages and a third in one exchange or three, followed by a reduction in the queue.
TEST_P(DeviceExchange, PartsNeedNotBeAlike) {
  if (size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  constexpr std::size_t kParts = 3, kCount = 2500;
  std::vector<std::unique_ptr<OnDevice<float>>> parts;
  std::array<Message, kParts> messages;
  std::array<ExchangeRequest*, kParts> requests{};
  for (std::size_t k = 0; k < kParts; ++k) {
    parts.push_back(std::make_unique<OnDevice<float>>(device(), comm(), kCount));
    parts[k]->write(content(rank(), k, kCount));
    messages[k] = {rank() == 0, parts[k]->data(), kCount * sizeof(float), 1 - rank(), 7};
  }
  if (rank() == 0) comm().start_exchange(messages).wait();
  if (rank() == 1) {
    for (std::size_t k = 0; k < kParts; ++k)
      requests[k] = &comm().start_exchange({&messages[k], 1});
    for (std::size_t k = kParts; k-- > 0;) requests[k]->wait_received();
    for (ExchangeRequest* request : requests) request->wait();
  }
  OnDevice<float> one(device(), comm(), 1);
  one.write({1});
  comm().all_reduce(one.data(), 1, DType::f32, ReduceOp::sum);
  bool ok = one.read()[0] == static_cast<float>(size());
  for (std::size_t k = 0; k < kParts; ++k)
    ok &= rank() > 1 || parts[k]->read() == content(0, k, kCount);
  EXPECT_ALL_RANKS(ok);
}

TEST_P(DeviceExchange, MistakesAreRefused) {
  if (size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  OnDevice<float> memory(device(), comm(), 4);
  const Message to_itself{true, memory.data(), 4, rank(), 0};
  const Message outside{true, memory.data(), 4, size(), 0};
  EXPECT_THROW(comm().start_exchange({&to_itself, 1}), Error);
  EXPECT_THROW(comm().start_exchange({&outside, 1}), Error);
  ExchangeRequest& nothing = comm().start_exchange({});
  nothing.wait();
  EXPECT_THROW(nothing.wait(), Error);
}

TEST_P(DeviceExchange, PipelineOfEverySchedule) {
  int runs = 0;
  each_run(size(), [&](ScheduleKind kind, const PipelineShape& shape) {
    if (shape.micro_batches % 2 == 0 && shape.micro_batches != 4) return;
    for (const Exchange exchange : kExchanges) {
      FakeStage stage(device(), shape, rank(), ++runs % 3 == 0 ? 1500 : 100);
      PipelineExecutor executor(make_schedule(kind, shape, exchange), comm(), {.clock = &device()});
      executor.run(stage, "a step");
      const std::string complaint = stage.complaint(kind == ScheduleKind::forward_only);
      EXPECT_ALL_RANKS(complaint.empty())
          << name_of_case(kind, shape) << " " << name_of(exchange) << ": " << complaint;
      for (const ActionTime& t : executor.times()) EXPECT_LE(t.begin, t.end);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceExchange,
                         testing::Values("mpi", "node", "tiny", "waiting", "nccl"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace choir::test
