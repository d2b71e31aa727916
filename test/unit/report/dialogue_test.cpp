#include "src/report/dialogue.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "choir/core/error.hpp"
#include "src/report/report_page.hpp"
#include "test/support/wav_file.hpp"

namespace choir {
namespace {

class DialoguePage : public ::testing::Test {
 protected:
  DialoguePage()
      : folder_(std::filesystem::temp_directory_path() /
                ("choir_dialogue_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~DialoguePage() override { std::filesystem::remove_all(folder_); }
  std::string folder() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

/// Ten frames, in which the agent speaks twice.
report::RecordedDialogue small_dialogue(const std::string& folder) {
  report::RecordedDialogue dialogue{.path = folder + "/talk.jsonl",
                                    .user = "user.wav",
                                    .agent = "agent.wav",
                                    .sample_rate = 16000,
                                    .frame_samples = 1280,
                                    .frames = {}};
  for (int i = 0; i < 10; ++i)
    dialogue.frames.push_back({.frame = i,
                               .text = i == 2   ? "sev"
                                       : i == 3 ? "en <b>"
                                       : i == 8 ? "no"
                                                : "",
                               .speaking = (i >= 2 && i < 6) || i >= 8,
                               .heard = i == 1   ? "what "
                                        : i == 4 ? "<i>now"
                                                 : "",
                               .user_db = -20.5,
                               .ms = 1.5});
  return dialogue;
}

void write_lines(const report::RecordedDialogue& dialogue) {
  std::ofstream file(dialogue.path);
  file << report::dialogue_head_line(dialogue) << '\n';
  for (const report::DialogueFrame& frame : dialogue.frames)
    file << report::dialogue_frame_line(dialogue, frame) << '\n';
}

TEST_F(DialoguePage, LinesComeBackAsTheyWere) {
  const report::RecordedDialogue written = small_dialogue(folder());
  write_lines(written);
  const report::RecordedDialogue read = report::read_dialogue(written.path);
  EXPECT_DOUBLE_EQ(read.seconds_per_frame(), 0.08);
  ASSERT_EQ(read.frames.size(), written.frames.size());
  EXPECT_EQ(read.frames[3].text, "en <b>");
  EXPECT_EQ(read.frames[5].user_db, -20.5);
  const auto turns = report::agent_turns(read);
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0].first, 2);
  EXPECT_EQ(turns[0].end, 6);
  EXPECT_EQ(turns[0].text, "seven <b>");
  EXPECT_EQ(turns[1].end, 10);
  ASSERT_EQ(report::user_turns(read).size(), 1u);
  EXPECT_EQ(report::user_turns(read)[0].first, 1);
  EXPECT_EQ(report::user_turns(read)[0].end, 5);
  EXPECT_EQ(report::user_turns(read)[0].text, "what <i>now");
}

TEST(DialogueTurns, ASecondWithoutWordsEndsATurnOfTheUser) {
  report::RecordedDialogue dialogue{
      .path = {}, .user = {}, .agent = {}, .sample_rate = 100, .frame_samples = 10, .frames = {}};
  for (int i = 0; i < 40; ++i)
    dialogue.frames.push_back({.frame = i, .heard = i == 3 || i == 13 || i == 24 ? "a" : ""});
  const auto turns = report::user_turns(dialogue);  // after 0.9 s, and after a whole second
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0].end, 14);
  EXPECT_EQ(turns[0].text, "aa");
  EXPECT_EQ(turns[1].first, 24);
}

TEST_F(DialoguePage, RefusesOtherLines) {
  const std::string path = folder() + "/a.jsonl";
  EXPECT_THROW(report::read_dialogue(path), DataError);
  const auto refused = [&](const std::string& text) {
    std::ofstream(path) << text;
    EXPECT_THROW(report::read_dialogue(path), DataError) << text;
  };
  const report::RecordedDialogue dialogue = small_dialogue(folder());
  const std::string head = report::dialogue_head_line(dialogue) + "\n";
  refused("");
  refused("{\"step\":1}\n");
  refused(head);
  refused(head + "{\"frame\":0}\n");
  refused(head + report::dialogue_frame_line(dialogue, dialogue.frames[1]) + "\n");  // 0 is missing
  std::ofstream(path) << head << report::dialogue_frame_line(dialogue, dialogue.frames[0]) << '\n';
  EXPECT_EQ(report::read_dialogue(path).frames.size(), 1u);
}

TEST_F(DialoguePage, PageHoldsBothVoicesAndEscapesWhatIsSaid) {
  report::RecordedDialogue dialogue = small_dialogue(folder());
  for (const char* voice : {"/user.wav", "/agent.wav"})
    test::write_wav(folder() + voice, 16000, 1, {1, 2, 3, 4});
  write_lines(dialogue);
  const std::string page = report::report_page({}, {}, {report::read_dialogue(dialogue.path)});
  EXPECT_NE(page.find("data:audio/wav;base64,UklGR"), std::string::npos);
  // The last bytes of the header, and the samples.
  const std::string sound = "AAABAAIAAwAEAA==";
  const std::size_t first = page.find(sound);
  ASSERT_NE(first, std::string::npos);
  EXPECT_NE(page.find(sound, first + 1), std::string::npos);
  EXPECT_NE(page.find("seven &lt;b&gt;"), std::string::npos);
  EXPECT_EQ(page.find("seven <b>"), std::string::npos);
  EXPECT_NE(page.find("what &lt;i&gt;now"), std::string::npos);
  std::filesystem::remove(folder() + "/agent.wav");
  EXPECT_THROW(report::report_page({}, {}, {report::read_dialogue(dialogue.path)}), DataError);
}

}  // namespace
}  // namespace choir
