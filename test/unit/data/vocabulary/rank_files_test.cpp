// Tests of .tiktoken files and tekken.json. The ids are those of the package tiktoken for the same
// ranks and expression.
#include "src/data/vocabulary/rank_files.hpp"

#include <gtest/gtest.h>

#include <fmt/core.h>

#include "choir/core/error.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/vocabulary/bpe_tokenizer.hpp"
#include "src/data/vocabulary/pre_tokenizers.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using Ids = std::vector<std::int32_t>;

std::vector<std::string> tokens() {
  std::vector<std::string> all;
  for (int byte = 0; byte < 256; ++byte) all.emplace_back(1, static_cast<char>(byte));
  for (const char* more : {"ab", "bc", "abc", "ca", "bcab", " a", "\u00e9", " abcab", "aa", "aaa"})
    all.emplace_back(more);
  return all;
}

std::string json_text(std::string_view text) {
  std::string all = "\"";
  for (const char c : text) {
    if (c == '\\') all += '\\';
    all += c;
  }
  return all + "\"";
}

/// A file with 20 control tokens, of which `specials` lists some.
std::string tekken(const std::string& specials, Splitter splitter = Splitter::tekken) {
  std::string vocabulary;
  const std::vector<std::string> all = tokens();
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    vocabulary += fmt::format(R"({}{{"rank": {}, "token_bytes": "{}", "token_str": null}})",
                              rank == 0 ? "" : ",\n", rank, to_base64(all[rank]));
  return fmt::format(
      R"({{"config": {{"pattern": {}, "num_vocab_tokens": {}, "default_vocab_size": {},
      "default_num_special_tokens": 20, "version": "v3"}}, "vocab": [{}]{}}})",
      json_text(expression_of(splitter)), all.size(), all.size() + 20, vocabulary, specials);
}

TEST(RankFiles, TekkenGivesTheIdsOfTiktoken) {
  const std::string file = tekken("");
  ASSERT_TRUE(is_tekken_file(file));
  const auto tokenizer =
      BpeTokenizer::from_json(tokenizer_json_of_tekken(file, "tekken.json"), "tekken.json");
  PieceCache cache;
  const auto ids = [&](std::string_view text) {
    return tokenizer.encode(text, cache, {.special = false});
  };
  EXPECT_EQ(ids("abcabcab"), (Ids{278, 278, 276}));
  EXPECT_EQ(ids(" abcab abcA"), (Ids{283, 52, 278, 85}));
  EXPECT_EQ(ids("\u00e912bcab"), (Ids{282, 69, 70, 280}));
  EXPECT_EQ(ids("aaaaaaa"), (Ids{284, 284, 285}));
  EXPECT_EQ(ids("cabcab</s>"), (Ids{119, 278, 276, 80, 67, 135, 82}));
  EXPECT_EQ(tokenizer.added_token("</s>"), 2);
  EXPECT_EQ(tokenizer.added_token("[INST]"), 3);
  EXPECT_EQ(tokenizer.added_token("[/SYSTEM_PROMPT]"), 18);
  EXPECT_EQ(tokenizer.prefix().size(), 1u);
  EXPECT_EQ(tokenizer.vocab_size(), 286);
}

TEST(RankFiles, TekkenListsItsControlTokens) {
  const std::string file = tekken(
      R"(, "special_tokens": [{"rank": 1, "token_str": "<s>", "is_control": true},
      {"rank": 5, "token_str": "[THINK]", "is_control": true}])");
  const auto tokenizer =
      BpeTokenizer::from_json(tokenizer_json_of_tekken(file, "tekken.json"), "tekken.json");
  EXPECT_EQ(tokenizer.added_token("[THINK]"), 5);
  EXPECT_EQ(tokenizer.added_token("<SPECIAL_3>"), 3);
  EXPECT_EQ(tokenizer.added_token("[INST]"), std::nullopt);
}

TEST(RankFiles, AreLoadedByContent) {
  const test::ScratchFolder folder;
  std::ofstream(folder / "tekken.json") << tekken("");
  const Vocabulary vocabulary = Vocabulary::load(folder / "tekken.json");
  EXPECT_EQ(vocabulary.kind(), VocabularyKind::bpe);
  EXPECT_EQ(vocabulary.encode("abc"), (Ids{278}));
  EXPECT_EQ(open_chat_tokenizer(folder / "tekken.json", "").chat, ChatTemplate::mistral);
}

std::string refused(const std::string& file) {
  try {
    if (is_tekken_file(file))
      tokenizer_json_of_tekken(file, "FILE");
    else
      tokenizer_json_of_tiktoken(file, "FILE");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(RankFiles, DamagedTekkenFilesAreRefusedByName) {
  std::string file = tekken("");
  file.replace(file.find("\"rank\": 7,"), 10, "\"rank\": 9,");
  EXPECT_NE(refused(file).find("has rank 9 at place 7"), std::string::npos);
  file = tekken("");
  file.replace(file.find("\"YWI=\""), 6, "\"YQ==\"");
  EXPECT_NE(refused(file).find("the same bytes at ranks 97 and 256"), std::string::npos);
  EXPECT_NE(refused(tekken(R"(, "special_tokens": [{"rank": 20, "token_str": "x"}])"))
                .find("the control token 20"),
            std::string::npos);
  file = tekken("");
  file.replace(file.find("\\\\r"), 3, "");
  EXPECT_NE(refused(file).find("an expression that is unknown"), std::string::npos);
}

/// All bytes and then further tokens of two bytes, `ranks` in all.
std::string tiktoken(std::size_t ranks) {
  std::string file;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::string bytes(1, static_cast<char>(rank));
    if (rank >= 256)
      bytes = {static_cast<char>((rank - 256) >> 16), static_cast<char>((rank - 256) >> 8),
               static_cast<char>(rank - 256)};
    file += fmt::format("{} {}\n", to_base64(bytes), rank);
  }
  return file;
}

TEST(RankFiles, PublishedNumbersOfRanksAreKnown) {
  const std::string file = tiktoken(50256);
  ASSERT_TRUE(is_tiktoken_file(file));
  const auto tokenizer =
      BpeTokenizer::from_json(tokenizer_json_of_tiktoken(file, "r50k_base.tiktoken"), "r50k");
  EXPECT_EQ(tokenizer.vocab_size(), 50257);
  EXPECT_EQ(tokenizer.added_token("<|endoftext|>"), 50256);
  PieceCache cache;
  EXPECT_EQ(tokenizer.encode("a1", cache), (Ids{97, 49}));
}

TEST(RankFiles, OtherListsAreRefusedByName) {
  const std::string few = refused(tiktoken(300));
  EXPECT_NE(few.find("is a list of 300 ranks"), std::string::npos) << few;
  EXPECT_NE(few.find("gpt2 (50256)"), std::string::npos) << few;
  EXPECT_NE(refused("IQ== 0\nIg== 2\n").find("rank 2 in line 2, where 1"), std::string::npos);
  EXPECT_NE(refused("IQ== 0\nIg=\n").find("line 2, which is no base64"), std::string::npos);
  EXPECT_FALSE(is_tiktoken_file("a b\n"));
  EXPECT_FALSE(is_tiktoken_file("{}"));
  EXPECT_FALSE(is_tiktoken_file(""));
}

}  // namespace
}  // namespace choir
