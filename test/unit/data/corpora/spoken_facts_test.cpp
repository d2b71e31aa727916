#include "src/data/corpora/spoken_questions.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;

/// 66 books of two chapters; the first begins with these verses.
std::string verses(const std::vector<std::string>& first) {
  std::string text;
  for (std::size_t v = 0; v < first.size(); ++v)
    text += "B1:" + std::to_string(v + 1) + " " + first[v] + "\n";
  for (int book = 0; book < 66; ++book)
    text +=
        fmt::format("{}B2:1 and all of it: was said.\n", book == 0 ? "" : fmt::format("{}x", book));
  return text;
}

std::string answer_to(const std::vector<SpokenFact>& facts, const std::string& question) {
  const auto found = std::ranges::find(facts, question, &SpokenFact::question);
  return found == facts.end() ? "" : found->answer;
}

TEST(SpokenFacts, OneParentAloneAndTheOrderOfBooks) {
  const auto facts = spoken_facts(verses({"And Irad begat Mehujael: and Mehujael begat Lamech.",
                                          "And Methusael begat Lamech, and begat sons",
                                          "Abner the son of Ner, and a Ram: Ram begat Uri; a ram",
                                          "Joash king of Israel the son of Jehoahaz"}));
  EXPECT_EQ(answer_to(facts, "who begat mehujael"), "irad");
  EXPECT_EQ(answer_to(facts, "who begat lamech"), "") << "two are named";
  EXPECT_EQ(answer_to(facts, "whose son was abner"), "ner");
  EXPECT_EQ(answer_to(facts, "who begat uri"), "") << "a ram may be no name";
  EXPECT_EQ(answer_to(facts, "who begat sons"), "");
  EXPECT_EQ(answer_to(facts, "whose son was israel"), "") << "it is about Joash";
  EXPECT_EQ(answer_to(facts, "which book comes after genesis"), "exodus");
  EXPECT_EQ(answer_to(facts, "which book comes before revelation"), "jude");
  EXPECT_EQ(answer_to(facts, "which book comes before genesis"), "");
  EXPECT_EQ(answer_to(facts, "how many chapters has ruth"), "two");
  EXPECT_EQ(facts.size(), 2u + 65 + 65 + 66);
  EXPECT_DATA_ERROR(spoken_facts("Ge1:1 In the beginning\n"), "a Bible of 1 books");
}

TEST(SpokenFacts, AFifthIsHeldOutAndAllAreSpokenInTurn) {
  const auto facts = spoken_facts(verses({"And Irad begat Mehujael"}));
  const SpokenPlan plan = spoken_facts_plan(facts, {.hours = 1, .seed = 3});
  const auto n = std::ssize(facts);
  std::map<std::string, std::set<bool>> heard;  // true for training
  const std::set<std::string> unseen(unseen_voices().begin(), unseen_voices().end());
  for (std::int64_t i = 0; i < 4 * n; ++i) {
    const SpokenPlan::Line line = plan.line(i);
    heard[line.spoken.text].insert(line.split == CorpusSplit::train);
    EXPECT_EQ(std::ssize(heard), std::min(i + 1, n)) << "every question once before any twice";
    EXPECT_EQ(unseen.contains(line.spoken.voice), line.split == CorpusSplit::val_voices);
  }
  std::int64_t held_out = 0;
  for (const auto& [question, trained] : heard) {
    EXPECT_EQ(trained.size(), 1u) << question;
    held_out += trained.contains(false);
  }
  // A binomial number with standard deviation sqrt(197 * 0.16) = 5.6.
  EXPECT_NEAR(static_cast<double>(held_out), static_cast<double>(n) / 5, 4 * 5.6);
}

TEST(SpokenFacts, TextHasAllOfThemAndClipsStandInPlaceOfQuestions) {
  const ScratchFolder scratch;
  const std::string folder = scratch / "corpus";
  const std::vector<SpokenFact> facts{{"who begat isaac", "abraham"}, {"who begat seth", "adam"}};
  CorpusReport report;
  find_corpus(folder, "{}", report);
  test::write_bytes(folder + "/audio/x.wav", std::string(44 + 2 * 16000, '\0'));
  finish_corpus(folder, "{}", {{CorpusSplit::val, "audio/x.wav", 250, 0.5, "who begat seth", "v"}});
  EXPECT_EQ(write_spoken_facts(folder, facts), 3);
  const auto asked = [](const std::string& user, const std::string& answer) {
    return R"({"from":"User","type":"text","value":"Answer:"},)" + user +
           R"(,{"from":"Assistant","type":"text","value":")" + answer + "\"}]}\n";
  };
  EXPECT_EQ(test::read_bytes(folder + "/conversations/facts.jsonl"),
            R"({"id":"fact-000000","conversations":[)" +
                asked(R"({"from":"User","type":"text","value":"who begat isaac"})", "abraham") +
                R"({"id":"fact-000001","conversations":[)" +
                asked(R"({"from":"User","type":"text","value":"who begat seth"})", "adam"));
  EXPECT_EQ(test::read_bytes(folder + "/conversations/val.jsonl"),
            R"({"id":"val-000000-0","conversations":[)" +
                asked(R"({"from":"User","type":"audio","value":"../audio/x.wav",)"
                      R"("offset":0.25,"duration":0.5})",
                      "adam"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/conversations/train.jsonl"));
}

}  // namespace
}  // namespace choir
