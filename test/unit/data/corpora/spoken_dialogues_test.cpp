#include "src/data/corpora/spoken_dialogues.hpp"

#include <gtest/gtest.h>
#include <cmath>
#include <map>
#include <set>

#include "src/core/text.hpp"

namespace choir {
namespace {

constexpr std::int64_t kMany = 4000;

TEST(SpokenDialogues, AreAFunctionOfSeedAndNumber) {
  for (const std::int64_t i : {0, 3, 11, 1234}) {
    const SpokenDialogue a = spoken_dialogue(5, i), b = spoken_dialogue(5, i);
    ASSERT_EQ(a.exchanges.size(), b.exchanges.size());
    for (std::size_t e = 0; e < a.exchanges.size(); ++e) {
      EXPECT_EQ(a.exchanges[e].question, b.exchanges[e].question);
      EXPECT_EQ(a.exchanges[e].answer, b.exchanges[e].answer);
      EXPECT_EQ(a.exchanges[e].pause, b.exchanges[e].pause);
    }
    EXPECT_EQ(a.user.voice, b.user.voice);
  }
  EXPECT_NE(
      spoken_dialogue(5, 0).exchanges[0].question + spoken_dialogue(5, 1).exchanges[0].question,
      spoken_dialogue(6, 0).exchanges[0].question + spoken_dialogue(6, 1).exchanges[0].question);
}

// Digits in words are repeated, counted up to, or added: an agent that understands the task is
// right.
TEST(SpokenDialogues, AnswersFollowFromQuestions) {
  const std::map<std::string, int> digits{{"zero", 0},  {"one", 1},  {"two", 2}, {"three", 3},
                                          {"four", 4},  {"five", 5}, {"six", 6}, {"seven", 7},
                                          {"eight", 8}, {"nine", 9}};
  std::map<std::string, int> kinds;
  for (std::int64_t i = 0; i < kMany; ++i)
    for (const SpokenExchange& exchange : spoken_dialogue(1, i).exchanges) {
      const auto words = split(exchange.question, ' ');
      if (words[0] == "count") {
        ++kinds["count"];
        ASSERT_EQ(std::ssize(exchange.answer), digits.at(words[2])) << exchange.question;
        for (std::size_t n = 0; n < exchange.answer.size(); ++n)
          ASSERT_EQ(digits.at(exchange.answer[n]), static_cast<int>(n) + 1);
      } else if (words[words.size() - 2] == "plus") {
        ++kinds["sum"];
        ASSERT_EQ(digits.at(exchange.answer.at(0)),
                  digits.at(words[words.size() - 3]) + digits.at(words.back()));
      } else {
        ++kinds["again"];
        ASSERT_EQ(exchange.question.substr(words[0].size() + 1), join(exchange.answer, " "));
      }
    }
  EXPECT_EQ(kinds.size(), 3u);
  for (const auto& [kind, count] : kinds) EXPECT_GT(count, kMany / 4) << kind;
}

TEST(SpokenDialogues, SplitsAndBargeIns) {
  std::map<CorpusSplit, std::int64_t> count, broken;
  std::set<std::string> trained, validated;
  for (std::int64_t i = 0; i < kMany; ++i) {
    const SpokenDialogue dialogue = spoken_dialogue(1, i);
    ++count[dialogue.split];
    ASSERT_GE(dialogue.exchanges.size(), 2u);
    ASSERT_LE(dialogue.exchanges.size(), 4u);
    std::int64_t breaks = 0;
    for (const SpokenExchange& exchange : dialogue.exchanges) {
      breaks += exchange.breaks_in > 0;
      ASSERT_TRUE(exchange.pause >= 3 && exchange.pause <= 8);
      ASSERT_TRUE(exchange.reply >= 3 && exchange.reply <= 8);
      const bool again =
          exchange.question.starts_with("say") || exchange.question.starts_with("repeat");
      if (again && exchange.answer.size() == 3)
        (dialogue.split == CorpusSplit::train ? trained : validated)
            .insert(join(exchange.answer, " "));
    }
    ASSERT_LE(breaks, 1);
    broken[dialogue.split] += breaks;
  }
  EXPECT_EQ(count[CorpusSplit::val], kMany / 16);
  EXPECT_EQ(count[CorpusSplit::val_barge_in], kMany / 16);
  EXPECT_EQ(broken[CorpusSplit::val], 0);
  EXPECT_EQ(broken[CorpusSplit::val_barge_in], count[CorpusSplit::val_barge_in]);
  // The share is a fifth, within four deviations of a binomial.
  const auto n = static_cast<double>(count[CorpusSplit::train]);
  EXPECT_NEAR(static_cast<double>(broken[CorpusSplit::train]), 0.2 * n, 4 * std::sqrt(0.16 * n));
  for (const std::string& words : validated) EXPECT_FALSE(trained.contains(words)) << words;
}

TEST(SpokenDialogues, TheScoreIsInWholeFrames) {
  for (std::int64_t i = 0; i < 500; ++i) {
    const SpokenDialogue dialogue = spoken_dialogue(2, i);
    std::vector<std::int64_t> samples, frames;
    for (const SpokenExchange& exchange : dialogue.exchanges) {
      samples.push_back(16 * (700 + 37 * (i % 11)));
      frames.push_back(6 * std::ssize(exchange.answer));
    }
    const DialogueScore score = score_dialogue(dialogue, samples, frames);
    for (std::size_t e = 0; e < score.agent.size(); ++e) {
      const auto& user = score.user[e];
      const auto& agent = score.agent[e];
      const auto asked = (user.end + kDialogueFrame - 1) / kDialogueFrame;
      ASSERT_EQ(agent.begin - asked, dialogue.exchanges[e].reply);
      const bool broken = e + 1 < score.agent.size() && dialogue.exchanges[e + 1].breaks_in > 0;
      if (!broken) {
        ASSERT_EQ(agent.end, agent.begin + 1 + frames[e]);
      } else {
        const std::int64_t stops = agent.end - score.user[e + 1].begin / kDialogueFrame;
        ASSERT_TRUE(stops >= 4 && stops <= 6) << stops;
        ASSERT_LT(agent.end, agent.begin + 1 + frames[e]) << "it is cut short";
      }
      if (e + 1 < score.agent.size()) {
        ASSERT_LT(agent.end, score.agent[e + 1].begin);
      }
    }
    ASSERT_GE(score.frames, score.agent.back().end + 3);
  }
}

}  // namespace
}  // namespace choir
