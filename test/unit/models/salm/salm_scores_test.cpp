// Tests of the scores of answers: they are sums that do not depend on ranks; BLEU is compared with
// sacrebleu for the same sentences.
#include "src/models/salm/evaluation.hpp"

#include <gtest/gtest.h>

#include "src/models/salm/data.hpp"

namespace choir {
namespace {

TEST(AnswerScores, AreThoseOfTheSums) {
  AnswerScores one, other;
  one.add("the cat is on the mat", "the cat sat on the mat");
  other.add("there is a dog here", "there is a dog");
  AnswerScores all = one;
  all += other;
  EXPECT_NEAR(all.bleu.score(), 48.766770743757, 1e-9);
  EXPECT_EQ(all.answers, 2);
  EXPECT_EQ(all.exact, 0);
  EXPECT_DOUBLE_EQ(all.words.rate(), 2.0 / 11);
  all.add("four", " four ");
  EXPECT_DOUBLE_EQ(all.exact_match(), 1.0 / 3);
}

TEST(AnswerScores, AreMetricsOfEachSetAndOfAll) {
  SalmSetScores a{.name = "a", .loss = 6, .targets = 3}, b{.name = "b", .loss = 2, .targets = 1};
  a.answers.add("one two", "one two");
  b.answers.add("one two", "one");
  const auto all = validations_of({a, b});
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].name, "");
  EXPECT_DOUBLE_EQ(all[0].loss, 2);
  EXPECT_EQ(all[0].metrics[0], (std::pair<std::string, double>("exact_match", 0.5)));
  EXPECT_EQ(all[0].metrics[1], (std::pair<std::string, double>("wer", 0.25)));
  EXPECT_EQ(all[2].name, "b");
  EXPECT_EQ(all[2].metrics[0].second, 0);
  EXPECT_EQ(validations_of({a}).size(), 1U);
}

TEST(SalmShapes, OnlyTheLargestAreKept) {
  const std::vector<ConversationShape> shapes{
      {4, 10, 4, 100}, {4, 10, 4, 100}, {2, 10, 4, 100}, {1, 40, 1, 100}, {4, 9, 5, 100}};
  const auto kept = largest_shapes(shapes);
  ASSERT_EQ(kept.size(), 3U);
  EXPECT_EQ(kept[1].tokens, 40);
  EXPECT_EQ(kept[2].clips, 5);
}

}  // namespace
}  // namespace choir
