#include "src/data/metrics/turn_taking.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"

namespace choir {
namespace {

const std::vector<UserSpan> kUser{{2, 10}, {30, 38}, {50, 58}};
// The third utterance of the user breaks into the second answer.
const std::vector<FrameTurn> kReference{{14, 20, {5, 6}}, {42, 55, {7, 8, 9}}, {62, 70, {5}}};

double value_of(const TurnCounts& counts, const std::string& name) {
  for (const auto& [key, value] : counts.metrics())
    if (key == name) return value;
  ADD_FAILURE() << "no metric " << name;
  return -1;
}

TEST(TurnCounts, ThePerfectAgent) {
  const TurnCounts counts = count_turns(kReference, kReference, kUser, 80);
  EXPECT_EQ(counts.turns, 3);
  EXPECT_EQ(counts.hits, 3);
  EXPECT_EQ(counts.exact, 3);
  EXPECT_EQ(counts.missed + counts.false_starts + counts.more + counts.talked_on, 0);
  EXPECT_EQ(counts.barge_ins, 1);
  EXPECT_EQ(counts.latency[4], 3);
  EXPECT_EQ(counts.stop[5], 1) << "user at 50, EOS at 55";
  EXPECT_EQ(value_of(counts, "turn_hits"), 1);
  EXPECT_EQ(value_of(counts, "stop_frames"), 5);
}

TEST(TurnCounts, EachFaultOnce) {
  // The answers are late by 3 (a hit), by 4 (answered, no hit, and it never stops), and missing for
  // the third; one begins during the user's words, one in silence.
  const std::vector<FrameTurn> said{{4, 6, {1}}, {17, 23, {5, 6}}, {25, 27, {1}}, {46, 80, {7}}};
  const TurnCounts counts = count_turns(kReference, said, kUser, 80);
  EXPECT_EQ(counts.hits, 1);
  EXPECT_EQ(counts.exact, 1);
  EXPECT_EQ(counts.missed, 1);
  EXPECT_EQ(counts.false_starts, 1);
  EXPECT_EQ(counts.more, 1);
  EXPECT_EQ(counts.barge_ins, 1);
  EXPECT_EQ(counts.talked_on, 1);
  EXPECT_EQ(counts.latency[7], 1);
  EXPECT_EQ(counts.latency[8], 1);
  EXPECT_EQ(value_of(counts, "latency_frames"), 7) << "the lower median";
  EXPECT_DOUBLE_EQ(value_of(counts, "missed_turns"), 1.0 / 3);
}

TEST(TurnCounts, SilenceMissesEverything) {
  const TurnCounts counts = count_turns(kReference, {}, kUser, 80);
  EXPECT_EQ(counts.missed, 3);
  EXPECT_EQ(counts.barge_ins, 1);
  EXPECT_EQ(median_of(counts.latency), -1);
  for (const auto& [name, value] : counts.metrics()) EXPECT_EQ(name == "missed_turns", value != 0);
}

// Counts are integers, so their sums do not depend on the rank that counted.
TEST(TurnCounts, IntegersAdd) {
  const TurnCounts a = count_turns(kReference, kReference, kUser, 80);
  const TurnCounts b = count_turns(kReference, {}, kUser, 80);
  std::vector<std::int64_t> sum = a.integers();
  const std::vector<std::int64_t> other = b.integers();
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  TurnCounts both = a;
  both += b;
  EXPECT_EQ(TurnCounts::of_integers(sum), both);
  EXPECT_EQ(both.dialogues, 2);
  EXPECT_EQ(both.turns, 6);
  sum.pop_back();
  EXPECT_THROW(TurnCounts::of_integers(sum), Error);
}

}  // namespace
}  // namespace choir
