#include "src/data/chat/conversation.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

class Conversations : public ::testing::Test {
 protected:
  Conversations() { std::filesystem::create_directories(folder_); }
  ~Conversations() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& text) {
    const std::string path = (folder_ / "chat.jsonl").string();
    std::ofstream(path) << text;
    return path;
  }
  ConversationList read(const std::string& text) { return read_conversations({write(text)}); }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("choir-conversations-{}", ::getpid());
};

TEST_F(Conversations, AreReadInEveryForm) {
  const auto list =
      read(R"({"messages":[{"role":"user","content":"q"},)"
           R"({"role":"assistant","content":[{"type":"text","text":"a"}]}]})"
           "\n"
           R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]})"
           "\n\n"
           R"({"prompt":"q","completion":"a"})"
           "\n"
           R"({"instruction":"q","input":"","output":"a"})"
           "\n");
  ASSERT_EQ(list.conversations.size(), 4u);
  const std::vector<Turn> expected{{.role = "user", .text = "q"},
                                   {.role = "assistant", .text = "a"}};
  for (const Conversation& one : list.conversations) EXPECT_EQ(one.turns, expected) << one.place;
  EXPECT_NE(list.conversations[2].place.find("chat.jsonl:4"), std::string::npos);
}

TEST_F(Conversations, SystemAndHistoryBesideTheTurnsComeFirst) {
  const auto list = read(
      R"({"system":"s","conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]})"
      "\n"
      R"({"system":"s","instruction":"q","output":"a","history":[["h","i"]]})"
      "\n"
      R"({"system":"","tools":null,"messages":[{"role":"user","content":"q","tool_calls":[]},)"
      R"({"role":"assistant","content":"a","name":"x"}],"source":"web"})"
      "\n");
  ASSERT_EQ(list.conversations.size(), 3u);
  const std::vector<Turn> last{{.role = "user", .text = "q"}, {.role = "assistant", .text = "a"}};
  std::vector<Turn> expected{{.role = "system", .text = "s"}};
  expected.insert(expected.end(), last.begin(), last.end());
  EXPECT_EQ(list.conversations[0].turns, expected);
  expected = {{.role = "system", .text = "s"},
              {.role = "user", .text = "h"},
              {.role = "assistant", .text = "i"}};
  expected.insert(expected.end(), last.begin(), last.end());
  EXPECT_EQ(list.conversations[1].turns, expected);
  EXPECT_EQ(list.conversations[2].turns, last);
  EXPECT_EQ(list.unused_text(), "name (1), source (1), tool_calls (1), tools (1)");
}

TEST_F(Conversations, PartsOfAConversationThatNoTurnHoldsAreRefused) {
  const std::string turns = R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";
  for (const char* key : {"tools", "images", "context"}) {
    try {
      read(fmt::format(R"({{"messages":{},"{}":[{{"name":"f"}}]}})", turns, key) + "\n");
      ADD_FAILURE() << key;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("chat.jsonl:1: \"{}\"", key)),
                std::string::npos)
          << error.what();
    }
  }
  EXPECT_THROW(read(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant",)"
                    R"("content":"a","reasoning_content":"r"}]})"
                    "\n"),
               DataError);
  EXPECT_THROW(read(R"({"instruction":"q","output":"a","history":["h"]})"
                    "\n"),
               DataError);
}

// Each trainer has a key of its own for answers that are only context.
TEST_F(Conversations, AnswersThatDoNotCountAreMarkedInEveryForm) {
  for (const char* flag : {R"("weight":0)", R"("weight":0.0)", R"("loss":false)",
                           R"("train":false)", R"("train":true,"loss":0)"}) {
    const auto list =
        read(fmt::format(R"({{"messages":[{{"role":"user","content":"q"}},{{"role":"assistant",)"
                         R"("content":"a",{}}},{{"role":"assistant","content":"b"}}]}})"
                         "\n"
                         R"({{"conversations":[{{"from":"human","value":"q"}},{{"from":"gpt",)"
                         R"("value":"a",{}}},{{"from":"gpt","value":"b","loss":null}}]}})"
                         "\n",
                         flag, flag));
    EXPECT_EQ(list.unused_text(), "") << flag;
    for (const Conversation& one : list.conversations) {
      ASSERT_EQ(one.turns.size(), 3u) << flag;
      EXPECT_FALSE(one.turns[1].counts) << flag << one.place;
      EXPECT_TRUE(one.turns[2].counts) << flag << one.place;
    }
  }
  for (const char* flag : {R"("weight":0.5)", R"("train":"false")", R"("masked":true)"})
    EXPECT_DATA_ERROR(read(fmt::format(R"({{"messages":[{{"role":"assistant","content":"a",{}}}]}})"
                                       "\n",
                                       flag)),
                      std::string(flag).substr(0, std::string(flag).find(':')));
}

TEST_F(Conversations, BadAnswersOfPreferenceDataAreNotLearnt) {
  const std::string turns = R"("messages":[{"role":"user","content":"q"},)"
                            R"({"role":"assistant","content":"a"}])";
  for (const std::string& line : {std::string(R"("prompt":"q","chosen":"a","rejected":"b")"),
                                  std::string(R"("prompt":"q","completion":"a","label":false)"),
                                  turns + R"(,"rejected_messages":[{"role":"user","content":"q"}])",
                                  turns + R"(,"kto_tag":false)"})
    EXPECT_DATA_ERROR(read("{" + line + "}\n"), "preference data");
  for (const char* member :
       {R"("label":true)", R"("label":"sport")", R"("label":0)", R"("rejected":null)"})
    EXPECT_EQ(read("{" + turns + "," + member + "}\n").conversations.size(), 1u) << member;
}

TEST_F(Conversations, SidesMayBeListsOfMessages) {
  const auto list =
      read(R"({"prompt":[{"role":"system","content":"s"},{"role":"user","content":"q"}],)"
           R"("completion":[{"role":"assistant","content":"a"}]})"
           "\n");
  const std::vector<Turn> expected{{.role = "system", .text = "s"},
                                   {.role = "user", .text = "q"},
                                   {.role = "assistant", .text = "a"}};
  EXPECT_EQ(list.conversations.front().turns, expected);
}

// Templates write each of them with a header of its own.
TEST_F(Conversations, TurnsOfOneRoleStaySeparate) {
  const auto list =
      read(R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"},)"
           R"({"role":"assistant","content":"c"},{"role":"system","content":"s"},)"
           R"({"role":"assistant","content":"d"}]})"
           "\n"
           R"({"conversations":[{"from":"human","value":"a"},{"from":"human","value":"b"},)"
           R"({"from":"gpt","value":"c"}]})"
           "\n");
  EXPECT_EQ(list.conversations[0].turns.size(), 5u);
  EXPECT_EQ(list.conversations[1].turns.size(), 3u);
}

TEST_F(Conversations, OfNemoHaveClipsAndOneTurnARole) {
  const auto list =
      read(R"({"id":"x","conversations":[{"from":"User","type":"text","value":"Repeat:"},)"
           R"({"from":"User","type":"audio","value":"a.wav","duration":1.5,"offset":2},)"
           R"({"from":"Assistant","type":"text","value":"one"}]})"
           "\n");
  const Conversation& one = list.conversations.front();
  EXPECT_EQ(one.id, "x");
  ASSERT_EQ(one.turns.size(), 2u);
  EXPECT_EQ(one.turns[0].text, std::string("Repeat: ") + kAudioTag);
  EXPECT_EQ(one.turns[0].clips, (std::vector<AudioClip>{{(folder_ / "a.wav").string(), 2, 1.5}}));
}

TEST_F(Conversations, OfLhotseAskWhatTheTagSays) {
  const auto list = read(R"({"id":"c","start":0.5,"duration":1,"channel":0,"type":"MonoCut",)"
                         R"("custom":{"context":"Reverse:"},"recording":{"id":"r",)"
                         R"("sampling_rate":16000,"num_samples":32000,"duration":2,)"
                         R"("sources":[{"type":"file","channels":[0],"source":"a.wav"}]},)"
                         R"("supervisions":[{"id":"s","start":0,"duration":1,"text":"two one"}]})"
                         "\n");
  const Conversation& one = list.conversations.front();
  ASSERT_EQ(one.turns.size(), 2u);
  EXPECT_EQ(one.turns[0].text, std::string("Reverse: ") + kAudioTag);
  EXPECT_EQ(one.turns[0].clips.front().offset, 0.5);
  EXPECT_EQ(one.turns[1].text, "two one");
}

TEST_F(Conversations, ThatCannotBeUsedAreCounted) {
  const std::string good = R"({"prompt":"q","completion":"a"})"
                           "\n";
  const auto list = read(good +
                         R"({"prompt":"q","completion":" "})"
                         "\n"
                         R"({"prompt":"q <|audio|>","completion":"a"})"
                         "\n"
                         R"({"_skipme":true})"
                         "\n"
                         R"({"messages":[{"role":"user","content":"q"}]})"
                         "\n" +
                         good);
  EXPECT_EQ(list.conversations.size(), 2u);
  ASSERT_EQ(list.dropped.size(), 4u);
  EXPECT_EQ(list.dropped.at("empty answer").count, 1);
  EXPECT_NE(list.dropped_text().find("4 left out"), std::string::npos) << list.dropped_text();
}

TEST_F(Conversations, ThatAreWrongAreRefusedWithTheirLine) {
  const std::string good = R"({"prompt":"q","completion":"a"})"
                           "\n";
  for (const auto& wrong : std::vector<std::pair<std::string, std::string>>{
           {"{", "chat.jsonl:2:2: not valid JSON: the text ends too early"},
           {R"({"prompt":"q","prompt":"r","completion":"a"})",
            "chat.jsonl:2:15: key 'prompt' is given twice (first in column 2)"},
           {"[]", "not a JSON object"},
           {"{}", "not a conversation"},
           {R"({"messages":[{"role":"robot","content":"x"}]})", "unknown role 'robot'"},
           {R"({"messages":[{"role":"user","content":7}]})", "not a text"},
           {R"({"prompt":"q","completion":7})", "not a text"},
           {R"({"messages":[{"role":"system","content":"q"},{"role":"system","content":"s"}]})",
            "two system turns"},
           {R"({"system":"s","messages":[{"role":"system","content":"t"}]})", "two system turns"},
           {R"({"messages":[{"role":"user"}]})", "a message of the user has no \"content\""},
           {R"({"messages":[{"role":"user","content":[{"type":"text","value":"x"}]}]})",
            "\"text\": ..."},
           {R"({"conversations":[{"from":"user","text":"x"}]})", "has no \"value\""},
           {R"({"conversations":[{"from":"user","type":"video","value":"x"}]})", "'video'"},
           {R"({"conversations":[{"from":"user","type":"audio","value":"x.wav"}]})", "seconds"},
           {R"({"conversations":[{"from":"user","type":"audio","value":"pipe:rm","duration":1}]})",
            "command"}}) {
    EXPECT_DATA_ERROR(read(good + wrong.first + "\n"), wrong.second);
    EXPECT_DATA_ERROR(read(good + wrong.first + "\n"), "chat.jsonl:2");
  }
  EXPECT_DATA_ERROR(read("\n"), "no usable conversation");
}

}  // namespace
}  // namespace choir
