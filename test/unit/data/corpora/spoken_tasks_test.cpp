#include "src/data/corpora/spoken_questions.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace choir {
namespace {

TEST(SpokenTasks, AnswersNeedTheWordsAndTheQuestion) {
  const auto tasks = spoken_tasks_of("nine two");
  const std::vector<SpokenTask> expected{{"Repeat:", "nine two"},
                                         {"Reverse the words:", "two nine"},
                                         {"Say the last word:", "two"},
                                         {"How many words?", "two"},
                                         {"Spell the first word:", "n i n e"},
                                         {"Add the numbers:", "eleven"}};
  EXPECT_EQ(tasks, expected);
  EXPECT_EQ(spoken_tasks_of("nine tree").size(), 5u) << "a tree adds to nothing";
}

TEST(SpokenTasks, HeldOutTextsAreNeverTrainedOn) {
  const SpokenPlan plan = spoken_tasks_plan({.hours = 1, .seed = 3});
  std::map<CorpusSplit, std::set<std::string>> texts;
  std::map<CorpusSplit, int> counts;
  const std::set<std::string> unseen(unseen_voices().begin(), unseen_voices().end());
  for (std::int64_t i = 0; i < 3000; ++i) {
    const SpokenPlan::Line line = plan.line(i);
    texts[line.split].insert(line.spoken.text);
    ++counts[line.split];
    EXPECT_EQ(unseen.contains(line.spoken.voice), line.split == CorpusSplit::val_voices);
  }
  for (const CorpusSplit held : {CorpusSplit::val, CorpusSplit::val_voices}) {
    EXPECT_GT(counts[held], 50);
    for (const std::string& text : texts[held])
      EXPECT_FALSE(texts[CorpusSplit::train].contains(text)) << text;
  }
}

}  // namespace
}  // namespace choir
