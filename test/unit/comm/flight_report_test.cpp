// Tests which rank is reported as the one that delays others, with records written by hand.
#include "src/comm/watch/flight_report.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "test/support/has.hpp"

namespace choir {
namespace {

using test::has;

constexpr std::uint64_t kData = 11, kTensor = 12;
constexpr double kNow = 1000;

CallRecord call(CommCall what, CallState state, const char* name, std::uint64_t group,
                std::uint64_t sequence, std::uint64_t bytes, double start, double end = 0) {
  return {.call = what,
          .state = state,
          .group = group,
          .sequence = sequence,
          .bytes = bytes,
          .start = start,
          .end = end,
          .name = name};
}

RankFlight rank(int world_rank, std::uint64_t entered_data, std::uint64_t entered_tensor) {
  return {.world_rank = world_rank,
          .process = 100 + world_rank,
          .state = ProcessState::sleeping,
          .phase = "step 12: backward",
          .groups = {{.id = kData, .rank = world_rank, .size = 3, .entered = entered_data},
                     {.id = kTensor, .rank = world_rank, .size = 3, .entered = entered_tensor}}};
}

const CallRecord kWaitsInData =
    call(CommCall::all_reduce, CallState::waiting, "dp", kData, 5, 8, kNow - 2);
const CallRecord kWaitsInTensor =
    call(CommCall::all_gather, CallState::waiting, "tp", kTensor, 9, 8, kNow - 1);

TEST(FlightReport, NamesWhoHasNotEntered) {
  std::vector<RankFlight> ranks{rank(0, 118, 117), rank(1, 118, 117), rank(2, 117, 117)};
  for (const std::size_t r : {0u, 1u})
    ranks[r].calls = {
        call(CommCall::all_reduce, CallState::waiting, "dp", kData, 118, 4194304, kNow - 3.1)};
  ranks[2].calls = {
      call(CommCall::all_gather, CallState::done, "tp", kTensor, 117, 64, kNow - 4, kNow - 3.2)};
  ranks[2].phase = "step 12: stage 1 of 2, backward of micro-batch 0, chunk 0";
  EXPECT_EQ(
      culprits(ranks, kNow),
      "rank 2 (process 102) has not entered all_reduce #118 of dp (4,194,304 bytes), where "
      "rank 0 has waited for 3.1 s; its last call: all_gather #117 of tp (64 bytes), done 3.2 s "
      "ago; in phase \"step 12: stage 1 of 2, backward of micro-batch 0, chunk 0\"");
}

// Rank 0 waits for 1 in dp, and 1 for 2 in tp: rank 2 delays both.
TEST(FlightReport, FollowsAChainToItsEnd) {
  std::vector<RankFlight> ranks{rank(0, 5, 9), rank(1, 4, 9), rank(2, 5, 8)};
  ranks[0].calls = {kWaitsInData};
  ranks[1].calls = {kWaitsInTensor};
  const std::string text = culprits(ranks, kNow);
  EXPECT_TRUE(has(text, "rank 2 (process 102) has not entered all_gather #9 of tp")) << text;
  EXPECT_FALSE(has(text, "rank 1 (process")) << text;
}

TEST(FlightReport, NamesAllOfACircle) {
  std::vector<RankFlight> ranks{rank(0, 5, 8), rank(1, 4, 9)};
  ranks[0].calls = {kWaitsInData};
  ranks[1].calls = {kWaitsInTensor};
  const std::string text = culprits(ranks, kNow);
  EXPECT_TRUE(has(text, "rank 1 (process 101) has not entered all_reduce #5 of dp")) << text;
  EXPECT_TRUE(has(text, "rank 0 (process 100) has not entered all_gather #9 of tp")) << text;
}

TEST(FlightReport, NamesTheOtherEndOfAMessage) {
  std::vector<RankFlight> ranks{rank(0, 5, 8), rank(1, 5, 8), rank(2, 5, 8)};
  ranks[0].calls = {call(CommCall::exchange, CallState::waiting, "pp", kData, 7, 64, kNow - 2)};
  ranks[0].calls[0].peer = 2;
  ranks[1].calls = {
      call(CommCall::barrier, CallState::done, "dp", kData, 5, 0, kNow - 9, kNow - 8)};
  const std::string text = culprits(ranks, kNow);
  EXPECT_TRUE(has(text,
                  "rank 2 (process 102) is the other end of exchange #7 of pp (64 bytes, "
                  "rank 2), in which rank 0 has waited for 2.0 s"))
      << text;
  EXPECT_TRUE(has(text, "it has made no call")) << text;
  EXPECT_FALSE(has(text, "rank 1 (process")) << text;
}

TEST(FlightReport, NamesWhoBeganAndDoesNotGoOn) {
  std::vector<RankFlight> ranks{rank(0, 5, 8), rank(1, 5, 8)};
  ranks[0].calls = {kWaitsInData};
  ranks[1].calls = {call(CommCall::all_reduce, CallState::started, "dp", kData, 5, 8, kNow - 3)};
  const std::string text = culprits(ranks, kNow);
  EXPECT_TRUE(has(text,
                  "rank 1 (process 101) has begun but does not continue all_reduce #5 of "
                  "dp (8 bytes), where rank 0 has waited for 2.0 s"))
      << text;
}

TEST(FlightReport, NobodyWaitsNobodyIsNamed) {
  std::vector<RankFlight> ranks{rank(0, 5, 8), rank(1, 4, 8)};
  ranks[0].calls = {call(CommCall::all_reduce, CallState::started, "dp", kData, 5, 8, kNow - 2)};
  EXPECT_EQ(culprits(ranks, kNow), "");
  ranks[0].calls[0].state = CallState::waiting;
  ranks[1].groups[0].entered = 5;
  EXPECT_EQ(culprits(ranks, kNow), "") << "all have entered";
}

TEST(FlightReport, AStoppedProcessIsNamedThoughItWaits) {
  std::vector<RankFlight> ranks{rank(0, 5, 8), rank(1, 5, 8)};
  for (RankFlight& r : ranks)
    r.calls = {call(CommCall::all_reduce, CallState::waiting, "dp", kData, 5, 8, kNow - 2)};
  ranks[1].state = ProcessState::stopped;
  const std::string text = culprits(ranks, kNow);
  EXPECT_TRUE(has(text, "rank 1 (process 101, stopped by a signal)")) << text;
  EXPECT_FALSE(has(text, "rank 0 (process")) << text;
}

TEST(FlightReport, TableHasEveryCall) {
  RankFlight r = rank(3, 5, 8);
  r.calls = {
      call(CommCall::all_reduce, CallState::done, "dp", kData, 4, 1234567, kNow - 5, kNow - 4),
      call(CommCall::barrier, CallState::waiting, "world", kTensor, 8, 0, kNow - 1)};
  const std::string text = flight_table(r, kNow);
  for (const char* words :
       {"rank 3 (process 103)", "phase: step 12: backward", "all_reduce #4 of dp (1,234,567 bytes)",
        "waiting  barrier #8 of world"})
    EXPECT_TRUE(has(text, words)) << words << " in\n" << text;
}

TEST(FlightReport, SeesHowAProcessIsDoing) {
  EXPECT_EQ(state_of_process(getpid()), ProcessState::running);
  EXPECT_EQ(state_of_process(0), ProcessState::unknown);
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  const auto becomes = [&](ProcessState wanted) {
    for (int i = 0; i < 1000 && state_of_process(child) != wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return state_of_process(child) == wanted;
  };
  EXPECT_TRUE(becomes(ProcessState::sleeping));
  kill(child, SIGSTOP);
  EXPECT_TRUE(becomes(ProcessState::stopped));
  kill(child, SIGKILL);
  EXPECT_TRUE(becomes(ProcessState::dead)) << "nobody has asked for its end yet";
  waitpid(child, nullptr, 0);
  EXPECT_EQ(state_of_process(child), ProcessState::dead);
}

}  // namespace
}  // namespace choir
