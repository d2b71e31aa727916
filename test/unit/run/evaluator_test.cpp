// Tests of the results of evaluations: means are those of sums over all sets, tags are shown where
// they tell samples apart, and every form of output has the same names and numbers.
#include "choir/run/evaluator.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "src/run/evaluation_record.hpp"

namespace choir {
namespace {

/// Counts right answers.
class RightAnswers final : public ScoreMeaning {
 public:
  std::vector<ScoreCounter> counters() const override {
    return {{kTargetsCounter}, {kComparedCounter, 1, true}, {"right", 1, true}};
  }
  std::string describe(const Scores& scores, Validation& to) const override {
    to.metrics.emplace_back("right", share(scores));
    return fmt::format("{:.2f} right in {:.0f} s", share(scores), scores.seconds);
  }
  std::string describe_tag(const Scores& scores, const std::string& tag,
                           Validation& to) const override {
    to.metrics.emplace_back("right/" + tag, share(scores));
    return fmt::format("{:.2f} right", share(scores));
  }

 private:
  static double share(const Scores& scores) {
    return static_cast<double>(scores.count("right")) /
           static_cast<double>(scores.count(kComparedCounter));
  }
};

Scores scores_of(std::int64_t compared, std::int64_t right) {
  Scores scores;
  scores.counters = {{kComparedCounter, {compared}}, {"right", {right}}};
  return scores;
}

SetScores set_of(const char* name, double loss, std::int64_t targets, std::int64_t compared,
                 std::int64_t right) {
  SetScores set{.name = name, .all = scores_of(compared, right)};
  set.all.losses = loss;
  set.all.seconds = 2;
  set.all.counters[kTargetsCounter] = {targets};
  return set;
}

/// All of b is German, and so is one of four samples of a; one tag belongs to no sample.
std::vector<SetScores> two_sets() {
  std::vector<SetScores> sets{set_of("a", 6, 3, 4, 1), set_of("b", 2, 1, 6, 6)};
  sets[0].tags = {{"lang=de", scores_of(1, 1)}, {"lang=en", scores_of(3, 0)}};
  sets[1].tags = {{"lang=de", scores_of(6, 6)}, {"lang=nl", scores_of(0, 0)}};
  return sets;
}

const std::vector<LossTerm> kOneTerm{{"loss", 1}};

using Metrics = std::vector<std::pair<std::string, double>>;

TEST(Evaluator, ResultsAreThoseOfTheSums) {
  const std::vector<Validation> list = validations_of(kOneTerm, RightAnswers(), two_sets());
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0].name, "");
  EXPECT_EQ(list[0].set, "");
  EXPECT_EQ(list[0].loss, 2);
  EXPECT_EQ(list[0].metrics, (Metrics{{"right", 0.7}, {"right/lang=de", 1}, {"right/lang=en", 0}}));
  EXPECT_EQ(list[0].counts.front().second, 4);
  EXPECT_EQ(list[1].name, "a");
  EXPECT_EQ(list[1].metrics,
            (Metrics{{"right", 0.25}, {"right/lang=de", 1}, {"right/lang=en", 0}}));
  EXPECT_EQ(list[2].metrics, (Metrics{{"right", 1}})) << "its tag would repeat this";
}

TEST(Evaluator, AnOnlySetIsTheWhole) {
  const std::vector<Validation> list = validations_of(kOneTerm, RightAnswers(), {two_sets()[1]});
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].name, "");
  EXPECT_EQ(list[0].set, "b");
  EXPECT_EQ(list[0].metrics, (Metrics{{"right", 1}, {"right/lang=de", 1}}));
}

TEST(Evaluator, TermsHaveTheirOwnTargets) {
  const std::vector<LossTerm> terms{{"text", 1}, {"codes", 0.5}};
  SetScores set = set_of("a", 0, 0, 1, 1);
  set.all.losses = ByTerm(2, 0);
  set.all.losses[0] = 6, set.all.losses[1] = 8;
  set.all.counters[kTargetsCounter] = {3, 4};
  const Validation v = validations_of(terms, RightAnswers(), {set}).front();
  EXPECT_EQ(v.loss, 2 + 0.5 * 2);
  EXPECT_EQ(v.metrics[1], (std::pair<std::string, double>("codes", 2)));
  set.all.counters[kTargetsCounter] = {2};
  EXPECT_EQ(validations_of(terms, RightAnswers(), {set}).front().loss, 3 + 0.5 * 4)
      << "one number counts the targets of all terms";
}

TEST(EvaluationText, HasOneOrderOfSetsAndTags) {
  const std::vector<Validation> list = validations_of(kOneTerm, RightAnswers(), two_sets());
  EXPECT_EQ(lines_of(list),
            (std::vector<std::string>{"'a': 0.25 right in 2 s", "'a', lang=de: 1.00 right",
                                      "'a', lang=en: 0.00 right", "'b': 1.00 right in 2 s",
                                      "all: 0.70 right in 4 s", "all, lang=de: 1.00 right",
                                      "all, lang=en: 0.00 right"}));
  EXPECT_EQ(lines_of({validations_of(kOneTerm, RightAnswers(), {two_sets()[1]})}),
            (std::vector<std::string>{"'b': 1.00 right in 2 s", "'b', lang=de: 1.00 right"}));
}

TEST(EvaluationText, HasTheValuesOfAllSetsInALine) {
  std::vector<Validation> list = validations_of(kOneTerm, RightAnswers(), two_sets());
  list[0].perplexity = std::exp(2.0);
  EXPECT_EQ(metrics_text(list),
            "val_loss=2.000000 perplexity=7.3891 val_right=0.700000 val_right/lang=de=1.000000 "
            "val_right/lang=en=0.000000 val_loss/a=2.000000 val_right/a=0.250000 "
            "val_right/lang=de/a=1.000000 val_right/lang=en/a=0.000000 val_loss/b=2.000000 "
            "val_right/b=1.000000 targets=4");
  EXPECT_EQ(values_of(list, "val/")[4], (std::pair<std::string, double>("val/loss/a", 2)));
}

TEST(EvaluationText, RecordsHaveTheSameNumbers) {
  std::vector<Validation> list = validations_of(kOneTerm, RightAnswers(), two_sets());
  list[0].perplexity = 7.5;
  const EvaluationRecord base{.checkpoint = "run/checkpoints/step_1",
                              .step = 9,
                              .precision = "fp32",
                              .conditions = {{"ema", 1}}};
  const auto records = records_of(list, base);
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(json_of(records[0]),
            R"({"event":"evaluation","step":9,"checkpoint":"run/checkpoints/step_1",)"
            R"("precision":"fp32","set":"all","kind":"validation","ema":1,"targets":4,)"
            R"("metrics":{"loss":2.0,"perplexity":7.5,"right":0.7,"right/lang=de":1.0,)"
            R"("right/lang=en":0.0}})");
  EXPECT_NE(json_of(records[2]).find(R"("set":"b","kind":"validation","ema":1)"), std::string::npos)
      << json_of(records[2]);
  EXPECT_EQ(records[2].set, "b");
  EXPECT_EQ(records[2].metrics, (Metrics{{"loss", 2}, {"right", 1}}));
}

// The loss of a sure model is a sum of logarithms of about 1, which is rounded to both sides of 0.
TEST(EvaluationText, ANumberThatIsRoundedToZeroHasNoSign) {
  std::vector<Validation> list(1);
  list[0].loss = -4e-7, list[0].metrics = {{"gain", -0.0}, {"rate", -6e-7}};
  EXPECT_EQ(metrics_text(list), "val_loss=0.000000 val_gain=0.000000 val_rate=-0.000001");
}

}  // namespace
}  // namespace choir
