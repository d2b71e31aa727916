// Tests of the scores of answers: they are sums that do not depend on ranks; BLEU is compared with
// sacrebleu for the same sentences.
#include "src/models/salm/evaluation.hpp"

#include <gtest/gtest.h>

#include "src/data/speech/data_sources.hpp"
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
  const auto set = [](const char* name, double loss, std::int64_t targets, const char* answer) {
    AnswerScores answers;
    answers.add("one two", answer);
    SetScores scores{.name = name, .all = {}};
    scores.all.losses = loss;
    scores.all.counters = {
        {kTargetsCounter, {targets}}, {kComparedCounter, {1}}, {"answers", answers.integers()}};
    return scores;
  };
  const auto all = validations_of({{"loss", 1}}, SalmMeaning(),
                                  {set("a", 6, 3, "one two"), set("b", 2, 1, "one")});
  ASSERT_EQ(all.size(), 3U);
  EXPECT_DOUBLE_EQ(all[0].loss, 2);
  EXPECT_EQ(all[0].metrics[0], (std::pair<std::string, double>("exact_match", 0.5)));
  EXPECT_EQ(all[0].metrics[1], (std::pair<std::string, double>("wer", 0.25)));
  EXPECT_EQ(all[2].name, "b");
  EXPECT_EQ(all[2].metrics[0].second, 0);
}

TEST(ValidationOptions, OfGeneratedAnswers) {
  const SpeechEvalSet set = eval_set_of(
      "a", "x answers=4 answer_tokens=9 temperature=0.8 top_k=5 top_p=0.9 min_duration=2",
      kSalmEvalWords);
  EXPECT_EQ(set.generation.answers, 4);
  EXPECT_EQ(set.generation.answer_tokens, 9);
  EXPECT_EQ(set.generation.temperature, 0.8);
  EXPECT_EQ(set.generation.top_k, 5);
  EXPECT_EQ(set.generation.top_p, 0.9);
  EXPECT_EQ(set.filter.min_duration, 2);
  EXPECT_EQ(eval_set_of("a", "x answers=-1", kSalmEvalWords).generation.answers, -1);
  EXPECT_FALSE(eval_set_of("a", "x", kSalmEvalWords).generation.answers);
  const auto refuses = [](const char* text, const char* words, EvalWords legal = kSalmEvalWords) {
    try {
      eval_set_of("a", text, legal);
      ADD_FAILURE() << text;
    } catch (const DeckError& error) {
      const std::string said = fmt::format("{} | {}", error.what(), error.hint());
      EXPECT_NE(said.find(words), std::string::npos) << text << ": " << said;
    }
  };
  refuses("x top_k=5", "no effect without temperature");
  refuses("x top_p=0.5", "no effect without temperature");
  refuses("x temperature=1 top_p=0", "0 is no share");
  refuses("x temperature=1 top_p=1.5", "1.5 is no share");
  refuses("x temperature=-1", "'-1' is not a number");
  refuses("x temperature=nan", "is not a number");
  refuses("x answer_tokens=0", "legal: 1 to 1048576");
  refuses("x answers=-2", "'-2' is not a number");
  refuses("x answers=-1 answer_tokens=3", "generates no answers");
  refuses("x batch_duration=3", "not measured in seconds");
  refuses("x dialogues=3", "no dialogues are held");
  refuses("x min_duration=1", "its samples have no audio", {});
  refuses("x tag.lang=en", "only losses are measured", {});
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
