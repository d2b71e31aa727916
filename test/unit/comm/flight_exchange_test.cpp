// Tests the records that one node writes of its ranks and another reads, and the report about all
// of them.
#include "src/comm/watch/flight_report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "test/support/has.hpp"

namespace choir {
namespace {

using test::has;

constexpr std::uint64_t kLaunch = 0xfedcba9876543210;

RankFlight flight(int rank, CallState state, double start, double end) {
  return {.world_rank = rank,
          .process = 100 + rank,
          .state = ProcessState::in_disk_wait,
          .alive = 999.5,
          .waiting = true,
          .beats = 41,
          .phase = "step 12: \xc3\xa9 and half of one \xc3",
          .calls = {{.call = CommCall::exchange,
                     .state = state,
                     .peer = 2,
                     .group = 0xffffffffffffffff,
                     .sequence = 118,
                     .bytes = 5000000000,
                     .start = start,
                     .end = end,
                     .name = "dp"}},
          .groups = {
              {.id = 0xffffffffffffffff, .rank = rank, .size = 4, .entered = 117, .name = "dp"}}};
}

// The writer's clock shows 1000, the reader's 5.
TEST(FlightExchange, EverythingIsReadAsItWasWritten) {
  const std::string text = flights_text(
      kLaunch, {flight(3, CallState::waiting, 997, 0), flight(4, CallState::done, 997, 998)}, 1000);
  const auto found = flights_of_text(text, kLaunch, 5);
  ASSERT_EQ(found.size(), 2u);
  const RankFlight& r = found[0];
  EXPECT_EQ(r.world_rank, 3);
  EXPECT_EQ(r.process, 103);
  EXPECT_EQ(r.state, ProcessState::in_disk_wait);
  EXPECT_TRUE(r.waiting);
  EXPECT_EQ(r.beats, 41);
  EXPECT_TRUE(r.phase.starts_with("step 12: \xc3\xa9 and half of one ")) << r.phase;
  ASSERT_EQ(r.calls.size(), 1u);
  const CallRecord& c = r.calls[0];
  EXPECT_EQ(describe(c), "exchange #118 of dp (5,000,000,000 bytes, rank 2)");
  EXPECT_EQ(c.state, CallState::waiting);
  EXPECT_EQ(c.group, 0xffffffffffffffff);
  EXPECT_EQ(c.end, 0);
  // On a busy machine a second may have passed between the two.
  EXPECT_NEAR(c.start, 5 - 3, 1);
  EXPECT_LE(c.start, 5 - 3);
  EXPECT_NEAR(r.alive, 4.5, 1);
  EXPECT_NEAR(found[1].calls[0].end - found[1].calls[0].start, 1, 1e-9);
  ASSERT_EQ(r.groups.size(), 1u);
  EXPECT_EQ(r.groups[0].id, 0xffffffffffffffff);
  EXPECT_EQ(r.groups[0].rank, 3);
  EXPECT_EQ(r.groups[0].size, 4);
  EXPECT_EQ(r.groups[0].entered, 117u);
  EXPECT_EQ(r.groups[0].name, "dp");
}

TEST(FlightExchange, OtherLaunchesAndHalfFilesAreNotRead) {
  const std::string text = flights_text(kLaunch, {flight(3, CallState::done, 997, 998)}, 1000);
  EXPECT_TRUE(flights_of_text(text, kLaunch + 1, 5).empty());
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{1}, text.size() / 2, text.size() - 1})
    EXPECT_TRUE(flights_of_text(text.substr(0, length), kLaunch, 5).empty()) << length;
  EXPECT_TRUE(flights_of_text("[]", kLaunch, 5).empty());
  EXPECT_TRUE(flights_of_text(R"({"launch": "x", "written": 0, "ranks": []})", 0, 5).empty());
}

// The wall clock of the writing node is wrong by an hour, or a year: its records have the age that
// it states.
TEST(FlightExchange, AWrongWallClockMakesNothingOlder) {
  const std::string text = flights_text(kLaunch, {flight(3, CallState::waiting, 997, 0)}, 1000);
  for (const double off : {-3e7, -3600.0, 3600.0, 3e7}) {
    nlohmann::json all = nlohmann::json::parse(text);
    all["written"] = all["written"].get<double>() + off;
    const auto found = flights_of_text(all.dump(), kLaunch, 5);
    ASSERT_EQ(found.size(), 1u) << off;
    EXPECT_DOUBLE_EQ(found[0].calls[0].start, 5 - 3) << off;
  }
}

// Rank 2, on the second node, keeps rank 0 waiting. Nothing was received from a third node.
TEST(FlightExchange, OneSentenceForAllNodes) {
  FlightExchange::Gathered all;
  for (const int r : {0, 1, 2, 3}) {
    const std::uint64_t entered = r == 2 ? 4 : 5;
    RankFlight rank{.world_rank = r,
                    .process = 100 + r,
                    .host = r < 2 ? "nodea" : "nodeb",
                    .beats = r == 2 ? 7 : 9,
                    .phase = r == 2 ? "step 3: forward" : "step 3: comm",
                    .groups = {{.id = 11, .rank = r, .size = 6, .entered = entered}}};
    if (r != 2)
      rank.calls = {{.call = CommCall::all_reduce,
                     .state = CallState::waiting,
                     .group = 11,
                     .sequence = 5,
                     .bytes = 64,
                     .start = 998,
                     .name = "dp"}};
    all.flights.push_back(rank);
  }
  all.silent = {"ranks 4-5 on nodec"};
  const std::string text = report_of_all(all, 1000);
  for (const char* words : {"rank 2 on nodeb is behind, in phase \"step 3: forward\"",
                            "rank 2 on nodeb (process 102) has not entered all_reduce #5 of dp (64 "
                            "bytes), where rank 0 "
                            "on nodea has waited for 2.0 s",
                            "nothing came from ranks 4-5 on nodec: stopped, dead, cut off"})
    EXPECT_TRUE(has(text, words)) << words << " in " << text;
  EXPECT_FALSE(has(text, "rank 1 on")) << text;
  EXPECT_EQ(report_of_all({}, 1000), "no rank is seen to keep the others waiting");
}

}  // namespace
}  // namespace choir
