#include "src/data/metrics/turn_taking.hpp"

#include <gtest/gtest.h>

namespace choir {
namespace {

constexpr double kFrame = 0.08;

DialogueTurn turn(bool agent, int begin, int end, const char* text) {
  return {
      .agent = agent, .start = begin * kFrame, .duration = (end - begin) * kFrame, .text = text};
}

// The user asks, and breaks into the answer at frame 50; the agent stops at 55, in the middle of
// "three". The sound begins one frame after BOS.
std::vector<DialogueTurn> dialogue() {
  std::vector<DialogueTurn> turns{
      turn(false, 2, 10, "what is one plus one"), turn(true, 14, 20, "two"),
      turn(false, 30, 38, "count to six"),        turn(true, 42, 55, "one two three four five six"),
      turn(false, 50, 58, "say seven"),           turn(true, 62, 70, "seven")};
  turns[1].words = {{"two", 15 * kFrame, 5 * kFrame}};
  turns[3].words = {{"one", 43 * kFrame, 6 * kFrame}, {"two", 49 * kFrame, 5 * kFrame}};
  return turns;
}

HeardReference reference_for(const std::vector<FrameTurn>& said,
                             const std::vector<DialogueTurn>& turns = dialogue()) {
  return heard_reference(turns, FrameClock{}, said, 80);
}

const FrameTurn kFirst{14, 20, {}}, kThird{62, 70, {}};

struct Broken {
  const char* what;
  FrameTurn said;
  const char* words;
  std::vector<UserSpan> unheard;
};

TEST(HeardReference, HasTheWordsThatTheAgentHadTheTimeToSay) {
  const std::vector<Broken> cases{
      {"as the reference", {42, 55, {}}, "two one two seven", {{54, 55}}},
      {"later, so that the second word would end behind its EOS",
       {44, 55, {}},
       "two one seven",
       {{51, 55}}},
      {"so early that the third word has begun", {40, 55, {}}, "two one two seven", {{52, 55}}},
      {"at once, so that nothing was said", {48, 51, {}}, "two seven", {{49, 51}}},
      {"it never stops", {42, 62, {}}, "two one two seven", {{54, 62}}},
      {"it ended before the user broke in, for which there is no excuse",
       {42, 47, {}},
       "two one two seven",
       {}}};
  for (const Broken& one : cases) {
    const HeardReference heard = reference_for({kFirst, one.said, kThird});
    EXPECT_EQ(heard.words, one.words) << one.what;
    ASSERT_EQ(heard.unheard.size(), one.unheard.size()) << one.what;
    for (std::size_t i = 0; i < one.unheard.size(); ++i) {
      EXPECT_EQ(heard.unheard[i].begin, one.unheard[i].begin) << one.what;
      EXPECT_EQ(heard.unheard[i].end, one.unheard[i].end) << one.what;
    }
  }
}

TEST(HeardReference, OfSilenceIsWhatCouldHaveBeenHeard) {
  EXPECT_EQ(reference_for({}).words, "two one two seven");
  EXPECT_TRUE(reference_for({}).unheard.empty());
}

TEST(HeardReference, IsTheTextWhereNobodyBreaksInOrWordsHaveNoTimes) {
  std::vector<DialogueTurn> turns = dialogue();
  const std::vector<FrameTurn> said{kFirst, {42, 55, {}}, kThird};
  turns[3].words.clear();
  EXPECT_EQ(reference_for(said, turns).words, "two one two three four five six seven");
  EXPECT_TRUE(reference_for(said, turns).unheard.empty());
  turns = dialogue();
  turns.erase(turns.begin() + 4);
  EXPECT_EQ(reference_for(said, turns).words, "two one two three four five six seven");
}

}  // namespace
}  // namespace choir
