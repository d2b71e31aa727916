#include "src/data/vocabulary/bpe_tokenizer.hpp"

#include <gtest/gtest.h>

#include "src/data/vocabulary/nfc.hpp"
#include "test/unit/data/scratch_folder.hpp"
#include "test/unit/data/vocabulary/golden_texts.hpp"

namespace choir {
namespace {

using Ids = std::vector<std::int32_t>;

BpeTokenizer golden(const std::string& name) {
  return BpeTokenizer::from_json(test::golden_tokenizer(name), name);
}

BpeTokenizer tiny() {
  return BpeTokenizer::from_json(test::tiny_tokenizer(), "tiny");
}

/// The ids of a text that is given `step` bytes at a time.
Ids in_parts(const BpeTokenizer& tokenizer, std::string_view text, std::size_t step) {
  PieceCache cache;
  Ids ids;
  std::size_t done = 0;
  for (std::size_t end = std::min(step, text.size());; end = std::min(end + step, text.size())) {
    done += tokenizer.encode_part(text.substr(done, end - done), end < text.size(), "the text",
                                  static_cast<std::int64_t>(done), cache, ids);
    if (end == text.size()) break;
  }
  EXPECT_EQ(done, text.size());
  return ids;
}

void gives_golden_ids(const std::string& name, const Ids test::GoldenText::*expected) {
  const BpeTokenizer tokenizer = golden(name);
  PieceCache cache;
  std::string all;
  for (const test::GoldenText& text : test::golden_texts()) {
    const Ids ids = tokenizer.encode(text.text, cache);
    EXPECT_EQ(ids, text.*expected) << name << ": " << text.text;
    EXPECT_EQ(tokenizer.encode(text.text, cache), ids) << "from the cache";
    EXPECT_TRUE(name == "qwen2" || tokenizer.decode(ids) == text.text) << text.text;
    all += text.text + " and ";
  }
  const Ids whole = tokenizer.encode(all, cache);
  for (const std::size_t step : {1u, 9u, 100u})
    EXPECT_EQ(in_parts(tokenizer, all, step), whole) << name << " by " << step;
}

TEST(BpeTokenizer, GivesTheIdsOfGpt2) {
  gives_golden_ids("gpt2", &test::GoldenText::gpt2);
}

TEST(BpeTokenizer, GivesTheIdsOfSmolLm2) {
  gives_golden_ids("smollm2", &test::GoldenText::smollm2);
}

TEST(BpeTokenizer, GivesTheIdsOfQwen2) {
  if (!have_nfc()) {
    EXPECT_DATA_ERROR(golden("qwen2"), "normalised text (NFC)");
    return;
  }
  gives_golden_ids("qwen2", &test::GoldenText::qwen2);
}

// A token that allows no word before it must not be found at the beginning of a part; one that
// includes the blanks around it must not lose them at the end of a part.
TEST(BpeTokenizer, FindsAddedTokensInPartsAsInTheWhole) {
  const BpeTokenizer tokenizer =
      BpeTokenizer::from_json(test::tokenizer_json(R"("a":0,"1":1,"\u0120":2)", "",
                                                   R"({"id":3,"content":"aa","single_word":true},)"
                                                   R"({"id":4,"content":"<r>","rstrip":true})"),
                              "x");
  std::string text;
  for (int i = 0; i < 30; ++i)
    text += i % 3 == 0   ? "11aa 1 1 1 1 1 1 1 1 1 1 1 1 1 1 11aa"
            : i % 3 == 1 ? " aa <r>    1"
                         : "1aa1";
  PieceCache cache;
  const Ids whole = tokenizer.encode(text, cache);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), 3), 10);
  for (std::size_t step = 1; step < 50; ++step)
    EXPECT_EQ(in_parts(tokenizer, text, step), whole) << "by " << step;
}

TEST(BpeTokenizer, MergesTheFirstOfTheListFirst) {
  const BpeTokenizer tokenizer = tiny();
  PieceCache cache;
  EXPECT_EQ(tokenizer.encode("the lowest hat", cache), (Ids{257, 69, 275, 261, 265, 273, 258}));
  EXPECT_EQ(tokenizer.encode("don't  \u00e9\n<|endoftext|>", cache),
            (Ids{68, 264, 7, 84, 221, 221, 128, 103, 199, 0}));
  EXPECT_EQ(tokenizer.encode("that123", cache), (Ids{257, 258, 262, 19}));
  EXPECT_EQ(tokenizer.vocab_size(), 280);
  EXPECT_EQ(tokenizer.decode(Ids{257, 69, 0}), "the<|endoftext|>");
  EXPECT_EQ(tokenizer.decode(Ids{257, 69, 0}, false), "the");
  EXPECT_DATA_ERROR(tokenizer.decode(Ids{280}), "token id 280 outside the vocabulary of 280");
  EXPECT_DATA_ERROR(golden("gpt2").decode(Ids{50255}), "token id 50255 has no entry");
  EXPECT_DATA_ERROR(tokenizer.encode("ab\xFF", cache, {}, "'x.txt'", 10),
                    "'x.txt' is not UTF-8 at byte 12");
  EXPECT_DATA_ERROR(tokenizer.encode("ab\xC3", cache), "the text is not UTF-8 at byte 2");
}

TEST(BpeTokenizer, TakesAPieceOfAnyLength) {
  const BpeTokenizer tokenizer = tiny();
  PieceCache cache;
  std::string text;
  for (int i = 0; i < 200000; ++i) text += "at";
  const Ids ids = tokenizer.encode(text, cache);
  EXPECT_EQ(ids, Ids(200000, 258));
}

// A full cache is emptied, and a cache that another tokenizer used gives no hits.
TEST(BpeTokenizer, RemembersPiecesOfOneTokenizerOnly) {
  const BpeTokenizer first = tiny(), second = golden("gpt2");
  PieceCache cache, fresh;
  EXPECT_EQ(first.encode("cat", cache), (Ids{266}));
  EXPECT_EQ(second.encode("the", cache), second.encode("the", fresh));
  std::string text;
  for (int i = 0; i < 70000; ++i) text += fmt::format(" {:x}", i * 7919);
  const Ids ids = first.encode(text, cache);
  EXPECT_EQ(first.decode(ids), text);
  PieceCache third;
  EXPECT_EQ(first.encode(" the cat sat", cache), first.encode(" the cat sat", third));
}

TEST(BpeTokenizer, LeavesSpecialTokensOfOthersAsText) {
  const BpeTokenizer tokenizer = tiny();
  PieceCache cache;
  const Ids ids = tokenizer.encode("<|endoftext|>", cache, {.special = false});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 0);
  EXPECT_EQ(tokenizer.decode(ids), "<|endoftext|>");
  EXPECT_EQ(tokenizer.added_token("<|endoftext|>"), 0);
  EXPECT_FALSE(tokenizer.added_token("the").has_value());
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_FALSE(tokenizer.is_special(257));
}

TEST(BpeTokenizer, NamesABytesPlaceThatTheVocabularyLacks) {
  const BpeTokenizer tokenizer = golden("smollm2");
  PieceCache cache;
  EXPECT_DATA_ERROR(tokenizer.encode("ab \x06", cache, {}, "'x.txt'", 100),
                    "byte 0x06 at byte 103 of 'x.txt' is not in the vocabulary");
}

TEST(BpeTokenizer, HashesItsEntries) {
  EXPECT_NE(tiny().hash(), golden("gpt2").hash());
  EXPECT_EQ(tiny().hash(), tiny().hash());
}

TEST(Nfc, ComposesAndKnowsThePlaces) {
  if (!have_nfc()) GTEST_SKIP() << "built without normalised text (NFC)";
  EXPECT_EQ(nfc("A\u030a \u212B e\u0301x"), "\u00c5 \u00c5 \u00e9x");
  EXPECT_EQ(nfc("\u1112\u1161\u11ab"), "\ud55c");
  const std::string text = "ae\u0301b";
  const NfcText normal(text);  // a, e with accent (2 bytes instead of 3), b
  EXPECT_EQ(normal.original_place(1), 1u);
  EXPECT_EQ(normal.original_place(2), NfcText::npos);
  EXPECT_EQ(normal.original_place(3), 4u);
  EXPECT_EQ(normal.original_place(4), 5u);
  EXPECT_EQ(nfc_certain_end("ab\u0301"), 1u);
  EXPECT_EQ(nfc_certain_end("a"), 0u);
}

}  // namespace
}  // namespace choir
