#include "src/data/text/batch_sources.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include "test/support/count_allocations.hpp"
#include "test/support/measured.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

class FakeSource : public BatchSource {
 public:
  FakeSource(std::atomic<std::int64_t>& fills, std::int64_t fails_at, double seconds = 0)
      : fills_(fills), fails_at_(fails_at), seconds_(seconds) {}
  void fill(std::int64_t call, Batch& batch) override {
    if (call == fails_at_) throw DataError("the disk is gone");
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
    batch.micro_batch = call;
    std::fill_n(batch.inputs.as<std::int32_t>(), batch.inputs.count(),
                static_cast<std::int32_t>(call));
    ++fills_;
  }
  std::int64_t rows() const override { return 2; }
  std::int64_t block_size() const override { return 3; }
  void abandon() override {}

 private:
  std::atomic<std::int64_t>& fills_;
  std::int64_t fails_at_;
  double seconds_;
};

TEST(Prefetcher, GivesEveryBatchInOrder) {
  for (const bool threaded : {false, true}) {
    std::atomic<std::int64_t> fills = 0;
    Prefetcher prefetcher(std::make_unique<FakeSource>(fills, -1), threaded);
    for (int i = 0; i < 200; ++i) {
      const Batch& batch = prefetcher.next();
      ASSERT_EQ(batch.micro_batch, i);
      if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      // Reading ahead must not change the batch that is in use.
      ASSERT_EQ(batch.inputs.as<std::int32_t>()[5], i);
    }
  }
}

// Ranks that asked equally often must have read equally often, at any speed.
TEST(Prefetcher, HowFarAheadDependsOnCallsAlone) {
  for (const int slots : {2, 4}) {
    for (const int asked : {0, 1, 7}) {
      std::atomic<std::int64_t> fills = 0;
      {
        Prefetcher prefetcher(std::make_unique<FakeSource>(fills, -1, 1e-3), true, slots);
        for (int i = 0; i < asked; ++i) prefetcher.next();
      }
      EXPECT_EQ(fills, asked + slots - 1);
    }
  }
}

TEST(Prefetcher, OneSlotIsReadWhenAskedFor) {
  std::atomic<std::int64_t> fills = 0;
  Prefetcher prefetcher(std::make_unique<FakeSource>(fills, -1), false, 1);
  EXPECT_EQ(fills, 0);
  for (int i = 1; i <= 3; ++i) {
    prefetcher.next();
    EXPECT_EQ(fills, i);
  }
}

TEST(Prefetcher, FailuresOfTheThreadReachTheCaller) {
  for (const bool threaded : {false, true}) {
    std::atomic<std::int64_t> fills = 0;
    Prefetcher prefetcher(std::make_unique<FakeSource>(fills, 3), threaded);
    for (int i = 0; i < 3; ++i) prefetcher.next();
    for (int again = 0; again < 2; ++again)
      EXPECT_DATA_ERROR(prefetcher.next(), "the disk is gone");
  }
}

TEST(Prefetcher, MeasuresWaiting) {
  std::atomic<std::int64_t> fills = 0;
  Prefetcher slow(std::make_unique<FakeSource>(fills, -1, 0.02), true);
  for (int i = 0; i < 3; ++i) slow.next();
  EXPECT_GE(slow.wait_seconds(), 0.03);
  Prefetcher hidden(std::make_unique<FakeSource>(fills, -1, 0.002), true);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    hidden.next();
  }
  test::print_measured("three batches read ahead", hidden.wait_seconds(), "s", "below", 0.02);
  EXPECT_LT(hidden.wait_seconds(), 0.02);
}

TEST(Prefetcher, AllocatesNothingInSteadyState) {
  std::atomic<std::int64_t> fills = 0;
  Prefetcher prefetcher(std::make_unique<FakeSource>(fills, -1), true);
  for (int i = 0; i < 3; ++i) prefetcher.next();
  const std::int64_t before = test::allocations();
  for (int i = 0; i < 50; ++i) prefetcher.next();
  EXPECT_EQ(test::allocations(), before);
}

}  // namespace
}  // namespace choir
