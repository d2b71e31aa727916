#include "src/data/chat/conversation.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"

namespace choir {
namespace {

std::string refusal(const std::string& text) {
  try {
    read_prompts(text, "p.jsonl");
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

TEST(Prompts, LinesOfTextAreTaken) {
  const auto prompts = read_prompts("To be\r\n\n  or not \n{3}\nend", "p.txt");
  ASSERT_EQ(prompts.size(), 4u);
  EXPECT_EQ(prompts[0].text, "To be");
  EXPECT_EQ(prompts[1].text, "  or not ") << "blanks belong to a prompt";
  EXPECT_EQ(prompts[1].place, "p.txt:3");
  EXPECT_EQ(prompts[2].text, "{3}") << "the first line decides";
  EXPECT_TRUE(prompts[3].turns.empty());
}

TEST(Prompts, JsonHasTextsAndConversations) {
  const auto prompts = read_prompts(
      "{\"id\": \"a\", \"prompt\": \"one\\ntwo\"}\n"
      "{\"id\": 7, \"messages\": [{\"role\": \"system\", \"content\": \"s\"}, "
      "{\"role\": \"user\", \"content\": \"u\"}]}\n"
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"h\"}]}\n",
      "p.jsonl");
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts[0].text, "one\ntwo");
  EXPECT_EQ(prompts[0].id, "a");
  EXPECT_EQ(prompts[1].id, "7");
  EXPECT_EQ(prompts[1].turns, (std::vector<Turn>{{.role = "system", .text = "s", .clips = {}},
                                                 {.role = "user", .text = "u", .clips = {}}}));
  EXPECT_EQ(prompts[2].turns.front().text, "h");
}

TEST(Prompts, WhatIsNoneIsRefusedWithItsPlace) {
  EXPECT_EQ(refusal("\n \n"), "p.jsonl has no prompt");
  EXPECT_EQ(refusal("{\"prompt\": \"a\"}\nplain"),
            "p.jsonl:2:1: not valid JSON: an unknown word or character");
  EXPECT_EQ(refusal("{\"text\": \"a\"}"),
            "p.jsonl:1: the line has neither \"prompt\" nor \"messages\"");
  EXPECT_EQ(refusal("{\"prompt\": 3}"), "p.jsonl:1: \"prompt\" is not a text, or is empty");
  EXPECT_EQ(refusal("{\"prompt\": \"\"}"), "p.jsonl:1: \"prompt\" is not a text, or is empty");
  EXPECT_EQ(refusal("caf\xe9"), "p.jsonl is not UTF-8, the only encoding supported");
  EXPECT_NE(refusal("{\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}")
                .find("p.jsonl:1: unknown role 'robot'"),
            std::string::npos);
  EXPECT_NE(refusal("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, "
                    "{\"role\": \"assistant\", \"content\": \"a\"}]}")
                .find("p.jsonl:1: the last turn is the assistant's"),
            std::string::npos);
  EXPECT_NE(refusal("{\"conversations\": [{\"from\": \"User\", \"value\": \"a.wav\", \"type\": "
                    "\"audio\", \"duration\": 1}]}")
                .find("p.jsonl:1: a turn has audio"),
            std::string::npos);
  EXPECT_NE(refusal("{\"a\":" + std::string(100'000, '[')).find("p.jsonl:1:"), std::string::npos);
}

}  // namespace
}  // namespace choir
