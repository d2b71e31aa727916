#include "src/train/loop/run_watch.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "choir/comm/flight_log.hpp"
#include "src/train/loop/weight_check.hpp"

namespace choir {
namespace {

// Numbers of numpy.percentile([4, 1, 3, 2], [10, 50, 90]), whose default is type 7.
TEST(RankTimes, Percentiles) {
  const std::vector<double> values{4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(percentile(values, 0.1), 1.3);
  EXPECT_DOUBLE_EQ(percentile(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile(values, 0.9), 3.7);
  EXPECT_EQ(percentile({7}, 0.9), 7);
}

TEST(RankTimes, LeavesOutWaitingForOthers) {
  const auto mesh = Mesh::planned(Layout(1, 1, 1, 1), 0, 1);
  RankTimes times;
  add_seconds_in_communication(50);  // before the first step
  times.begin();
  times.span(Phase::data, -5, 0);
  times.span(Phase::other, 0, 10);
  times.span(Phase::forward, 10, 13);
  add_seconds_in_communication(2);  // inside the backward pass: a collective of tensor parallelism
  times.span(Phase::backward, 13, 18);
  add_seconds_in_communication(4);
  times.span(Phase::comm, 18, 22);
  times.end_step();
  times.span(Phase::forward, 22, 25);
  times.end_step();
  const RankTimesReport report = times.report(*mesh);
  EXPECT_EQ(report.steps, 2);
  EXPECT_DOUBLE_EQ(report.slowest, 9.5) << "(10 + 3 + 5 - 2 + 3) seconds in two steps";
  EXPECT_DOUBLE_EQ(report.p50, 9.5);
  EXPECT_DOUBLE_EQ(report.outside, 5) << "other; data may be waiting";
  EXPECT_DOUBLE_EQ(times.whole_run().all, 3) << "the first step warms up";
  EXPECT_DOUBLE_EQ(times.whole_run().outside, 0);
  EXPECT_FALSE(report.steady);
  EXPECT_EQ(times.steps(), 0) << "begins anew";
  EXPECT_EQ(times.report(*mesh).slowest, 0);
}

TEST(RankTimes, KnowsTheSpreadOfItsSteps) {
  RankTimes times;
  times.begin();
  EXPECT_EQ(times.whole_run().all, 0);
  double now = 0;
  for (const double seconds : {40, 2, 4, 4, 4, 5, 5, 7, 9}) {
    times.span(Phase::forward, now, now + seconds);
    now += seconds;
    times.end_step();
    if (now == 40) {
      EXPECT_DOUBLE_EQ(times.whole_run().all, 40) << "there is no other";
    }
  }
  EXPECT_DOUBLE_EQ(times.whole_run().all, 5);
  EXPECT_DOUBLE_EQ(times.whole_run().deviation, std::sqrt(32.0 / 7)) << "of a sample of eight";
}

TEST(RankTimes, IsWritten) {
  const RankTimesReport report{.steps = 100,
                               .p10 = 0.0801,
                               .p50 = 0.082,
                               .p90 = 0.0833,
                               .slowest = 0.1066,
                               .outside = 0.002,
                               .slowest_rank = 3,
                               .slowest_host = "n12"};
  const std::string text = to_string(report), json = to_json(report, 40);
  for (const char* words : {"100 steps", "rank 3 on n12", "1.30 times the median",
                            "2 ms of these are neither forward nor backward"})
    EXPECT_NE(text.find(words), std::string::npos) << text;
  EXPECT_EQ(json,
            "{\"step\":40,\"compute\":{\"steps\":100,\"p10\":0.0801,\"p50\":0.082,\"p90\":0.0833,"
            "\"slowest\":0.1066,\"outside\":0.002,\"slowest_rank\":3,\"slowest_host\":\"n12\","
            "\"steadily_slow\":"
            "false}}");
}

std::vector<WeightDigest> equal_digests(std::size_t ranks) {
  return std::vector<WeightDigest>(ranks, {.all = 5, .shared = 6});
}

TEST(WeightDisputes, TheMajorityIsRight) {
  std::vector<WeightDigest> digests = equal_digests(4);
  const Layout layout(1, 1, 4, 1);  // four replicas
  EXPECT_TRUE(disputes(layout, digests).empty());
  digests[2].all = 9;
  const std::vector<WeightDispute> list = disputes(layout, digests);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].ranks, (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(list[0].wrong, (std::vector{2}));
}

TEST(WeightDisputes, OfTwoBothAreNamed) {
  std::vector<WeightDigest> digests = equal_digests(2);
  digests[1].all = 9;
  const std::vector<WeightDispute> list = disputes(Layout(1, 1, 2, 1), digests);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].wrong, (std::vector{0, 1}));
  digests = equal_digests(4);
  digests[0].all = digests[1].all = 9;
  ASSERT_EQ(disputes(Layout(1, 1, 4, 1), digests).size(), 1u);
  EXPECT_EQ(disputes(Layout(1, 1, 4, 1), digests)[0].wrong, (std::vector{0, 1, 2, 3}))
      << "two against two";
}

// tp = 2 varies fastest: replicas are {0, 2} and {1, 3}, which hold different weights.
TEST(WeightDisputes, OnlyReplicasAreCompared) {
  std::vector<WeightDigest> digests = equal_digests(4);
  const Layout layout(2, 1, 2, 1);
  digests[1].all = digests[3].all = 7;
  EXPECT_TRUE(disputes(layout, digests).empty());
  digests[3].shared = 8;  // rank 2 has this whole, too
  const std::vector<WeightDispute> list = disputes(layout, digests);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].ranks, (std::vector{2, 3}));
}

}  // namespace
}  // namespace choir
