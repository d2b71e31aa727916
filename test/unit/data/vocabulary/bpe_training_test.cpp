#include "src/data/vocabulary/bpe_training.hpp"

#include <gtest/gtest.h>

#include "src/data/vocabulary/bpe_tokenizer.hpp"
#include "test/unit/data/scratch_folder.hpp"
#include "test/unit/data/vocabulary/golden_texts.hpp"

namespace choir {
namespace {

constexpr const char* kText =
    "the lowest cat sat on the low hat; the newest widest hat that the cat saw was 1212 low.\n"
    "newer lower wider: the rat, the bat, banana aaaa aaaaaaa don't can't won't isn't\n";

WordCounts counts_of(std::string_view text, Splitter splitter = Splitter::gpt2) {
  WordCounts counts;
  count_words(PreTokenizer({splitter}), text, false, "the text", 0, counts);
  return counts;
}

std::vector<std::string> made(const TrainedBpe& bpe) {
  std::vector<std::string> all;
  for (const BpeMerge& merge : bpe.merges)
    all.push_back(bpe.entries[static_cast<std::size_t>(merge.left)] + "|" +
                  bpe.entries[static_cast<std::size_t>(merge.right)]);
  return all;
}

// Merges that the trainer of Hugging Face's library 0.23.3 finds in the same text.
TEST(BpeTraining, MakesTheMergesOfTheOutsideWorld) {
  const TrainedBpe bpe =
      train_bpe(counts_of(kText), {.vocab_size = 400, .splitter = Splitter::gpt2});
  EXPECT_EQ(made(bpe), (std::vector<std::string>{
                           "a|a",   "a|t",    "t|h",   " |th",   " th|e", "'|t", "l|o",   "w|e",
                           " |w",   " |lo",   "a|n",   "o|n",    "s|t",   " |c", "aa|aa", "1|2",
                           "d|e",   "e|we",   "h|at",  "i|de",   "n|ewe", " |b", " |s",   " |aaaa",
                           " |hat", " w|ide", " lo|w", " lo|we", " c|at"}));
  EXPECT_EQ(bpe.entries.size(), 257 + bpe.merges.size());
}

TEST(BpeTraining, BreaksTiesByIds) {
  const WordCounts counts{{"cd", 3}, {"ab", 3}, {"ad", 3}, {"xy", 4}};
  const TrainedBpe bpe = train_bpe(counts, {.vocab_size = 261});
  EXPECT_EQ(made(bpe), (std::vector<std::string>{"x|y", "a|b", "a|d", "c|d"}));
}

TEST(BpeTraining, StopsAtTheSizeAndAtRarePairs) {
  const WordCounts counts{{"ab", 5}, {"cd", 1}};
  EXPECT_EQ(made(train_bpe(counts, {.vocab_size = 300})), (std::vector<std::string>{"a|b"}));
  EXPECT_EQ(made(train_bpe(counts, {.vocab_size = 300, .least_count = 1})).size(), 2u);
  EXPECT_TRUE(made(train_bpe(counts, {.vocab_size = 257})).empty());
}

TEST(BpeTraining, RefusesSizesAndTokensThatCannotBe) {
  EXPECT_THROW(train_bpe({}, {.vocab_size = 256}), DeckError);
  EXPECT_THROW(train_bpe({}, {.vocab_size = 300, .special_tokens = {"<s>", "<s>"}}), DeckError);
  EXPECT_THROW(train_bpe({}, {.vocab_size = 300, .special_tokens = {"a"}}), DeckError);
  EXPECT_THROW(train_bpe({}, {.vocab_size = 300, .special_tokens = {"\u0120"}}), DeckError);
  EXPECT_THROW(train_bpe({}, {.vocab_size = 300, .special_tokens = {""}}), DeckError);
}

TEST(BpeTraining, WritesATokenizerThatIsRead) {
  for (const Splitter splitter : {Splitter::gpt2, Splitter::llama3, Splitter::qwen2}) {
    const BpeTraining training{.vocab_size = 300,
                               .splitter = splitter,
                               .special_tokens = {"<|endoftext|>", "<\"quoted\">"}};
    const TrainedBpe bpe = train_bpe(counts_of(kText, splitter), training);
    const BpeTokenizer tokenizer =
        BpeTokenizer::from_json(tokenizer_json_of(bpe, training), "trained");
    EXPECT_EQ(tokenizer.vocab_size(), static_cast<int>(bpe.entries.size()));
    EXPECT_EQ(tokenizer.added_token("<\"quoted\">"), 1);
    PieceCache cache;
    for (const test::GoldenText& golden : test::golden_texts())
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(golden.text, cache)), golden.text);
    EXPECT_LT(tokenizer.encode(kText, cache).size(), std::string_view(kText).size() * 3 / 4);
  }
}

TEST(WordCounts, AreTheSameInParts) {
  const std::string text(kText);
  const PreTokenizer pre_tokenizer({Splitter::llama3});
  WordCounts counts;
  std::size_t done = 0;
  for (std::size_t end = 7; end < text.size() + 7; end += 7) {
    const bool more = end < text.size();
    done += count_words(pre_tokenizer, std::string_view(text).substr(done, end - done), more,
                        "the text", 0, counts);
  }
  EXPECT_EQ(done, text.size());
  EXPECT_EQ(counts, counts_of(text, Splitter::llama3));
  EXPECT_DATA_ERROR(count_words(pre_tokenizer, "a\xFF", true, "'x'", 5, counts),
                    "'x' is not UTF-8 at byte 6");
}

}  // namespace
}  // namespace choir
