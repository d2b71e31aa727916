// Rows and decks that are chosen for conversations.
#include <gtest/gtest.h>

#include "src/models/gpt/chat_data.hpp"
#include "src/models/gpt/chat_deck.hpp"

namespace choir {
namespace {

GptConfig with_positions(std::int64_t block, Position position = Position::rope) {
  GptConfig config;
  config.block_size = block;
  config.position = position;
  return config;
}

TEST(ChatDeck, RowsHoldEightConversationsAndTheLongest) {
  const auto length = [](std::int64_t tokens, std::int64_t longest, const GptConfig& model) {
    return chat_row_length({.conversations = 10, .tokens = tokens, .longest = longest}, model);
  };
  const GptConfig model = with_positions(8192);
  EXPECT_EQ(length(250, 30, model), 256) << "8 x 25 = 200, in multiples of 64";
  EXPECT_EQ(length(50, 9, model), 48) << "8 x 5 = 40, in multiples of 16";
  EXPECT_EQ(length(250, 1000, model), 1024);
  EXPECT_EQ(length(250, 1025, model), 1024) << "the last token is no input";
  EXPECT_EQ(length(250, 1026, model), 1088);
  EXPECT_EQ(length(20000, 4000, with_positions(4096)), 4096) << "at most those of the model";
  EXPECT_EQ(length(250, 30, with_positions(1024, Position::learned)), 1024);
  GptConfig windows = model;
  windows.window = 512;
  EXPECT_EQ(length(250, 30, windows), 576);
}

TEST(ChatDeck, AdviceNamesTheKeysThatHelp) {
  const RowFill sparse{
      .block = 8192, .rows = 100, .conversations = 100, .tokens = 2500, .longest = 60};
  EXPECT_NEAR(sparse.padding(), 1 - 2500.0 / 819200, 1e-12);
  const std::string advice = padding_advice(sparse, with_positions(8192));
  EXPECT_NE(advice.find("99.7 % of the rows is padding"), std::string::npos) << advice;
  EXPECT_NE(advice.find("data.pack=true model.block_size=256 leaves about"), std::string::npos)
      << advice;
  const std::string learned = padding_advice(sparse, with_positions(8192, Position::learned));
  EXPECT_NE(learned.find(" data.pack=true leaves about"), std::string::npos) << learned;
  const RowFill dense{
      .block = 32, .rows = 100, .conversations = 100, .tokens = 2500, .longest = 30};
  EXPECT_EQ(padding_advice(dense, with_positions(32)), "");
  const RowFill few{
      .block = 8192, .rows = 1, .conversations = 3, .tokens = 75, .longest = 60, .packed = true};
  EXPECT_EQ(padding_advice(few, with_positions(8192)).find("data.pack"), std::string::npos)
      << "rows that are packed already need only another length";
}

}  // namespace
}  // namespace choir
