// Tests that the counts of a text that ranks share are those of one rank that has the whole text,
// and so are the merges.
#include "choir/comm/mesh/mesh.hpp"
#include "src/data/vocabulary/bpe_training.hpp"
#include "test/support/mpi_test.hpp"

namespace choir {
namespace {

TEST(WordCounts, AreSummedOverRanks) {
  const auto mesh = Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic);
  Communicator& ranks = mesh->along(Axis::data);
  const PreTokenizer pre_tokenizer({Splitter::llama3});
  WordCounts own, all;
  for (int line = 0; line < 50; ++line) {
    const std::string text = "line " + std::to_string(line * line) + " of a text, \u00e9t\u00e9 " +
                             std::string(static_cast<std::size_t>(line % 7 + 1), 'a') + "\n";
    count_words(pre_tokenizer, text, false, "the text", 0, all);
    if (line % ranks.size() == ranks.rank())
      count_words(pre_tokenizer, text, false, "the text", 0, own);
  }
  const WordCounts sums = sum_word_counts(ranks, own);
  EXPECT_ALL_RANKS(sums == all);
  EXPECT_ALL_RANKS(train_bpe(sums, {.vocab_size = 300}).merges ==
                   train_bpe(all, {.vocab_size = 300}).merges);
}

// One rank has no text, and some words contain a zero byte.
TEST(WordCounts, MayBeMissingOnRanks) {
  const auto mesh = Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic);
  Communicator& ranks = mesh->along(Axis::data);
  WordCounts own;
  if (ranks.rank() == ranks.size() - 1) own = {{std::string("a\0b", 3), 7}, {"x", 1}};
  EXPECT_ALL_RANKS(sum_word_counts(ranks, own) ==
                   (WordCounts{{std::string("a\0b", 3), 7}, {"x", 1}}));
  EXPECT_ALL_RANKS(sum_word_counts(ranks, {}).empty());
}

}  // namespace
}  // namespace choir
