// tokenizer.json files made from SentencePiece models. The expected ids are those of the Python
// package tokenizers 0.22.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "choir_features.hpp"
#include "src/data/vocabulary/sentencepiece.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "test/unit/data/scratch_folder.hpp"

#ifdef CHOIR_HAVE_SENTENCEPIECE

namespace choir {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr const char* kLegacySteps =
    R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},)"
    R"({"type":"Replace","pattern":{"String":" "},"content":"▁"}]})";
constexpr const char* kReplaceStep = R"({"type":"Replace","pattern":{"String":" "},"content":"▁"})";
constexpr const char* kSplitStep =
    R"({"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false})";
constexpr const char* kMetaspaceStep =
    R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false})";
constexpr const char* kMetaspaceMerges = R"(["a","b"],["▁","a"],["▁a","b"],["▁","ab"],["ab","c"])";

/// 3 control tokens, 256 bytes, and 8 pieces from id 259 on.
std::string metaspace_file(const std::string& normalizer, const std::string& pre,
                           const std::string& merges = kMetaspaceMerges,
                           const std::string& post = "null", const std::string& decoder = "null") {
  std::string vocabulary = R"("<unk>":0,"<s>":1,"</s>":2)", added;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary += fmt::format(R"(,"<0x{:02X}>":{})", byte, 3 + byte);
  int id = 259;
  for (const char* piece : {"▁", "a", "b", "c", "ab", "▁a", "▁ab", "abc"})
    vocabulary += fmt::format(R"(,"{}":{})", piece, id++);
  for (const char* token : {"<unk>", "<s>", "</s>"})
    added += fmt::format(R"({}{{"id":{},"content":"{}","normalized":false,"special":true}})",
                         added.empty() ? "" : ",",
                         added.empty()     ? 0
                         : token[1] == 's' ? 1
                                           : 2,
                         token);
  return fmt::format(
      R"({{"version":"1.0","truncation":{{"max_length":4}},"padding":null,"added_tokens":[{}],)"
      R"("normalizer":{},"pre_tokenizer":{},"post_processor":{},"decoder":{},"model":)"
      R"({{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback": true,"vocab":{{{}}},)"
      R"("merges":[{}]}}}})",
      added, normalizer, pre, post, decoder, vocabulary, merges);
}

void expect_ids(const std::string& json, const std::vector<Ids>& expected) {
  const Vocabulary vocabulary = Vocabulary::from_json(json, "x");
  const Vocabulary again = Vocabulary::from_json(vocabulary.to_json(), "y");
  const char* texts[] = {"abc ab a", " abc", "  ab", "aabcé\n", ""};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(vocabulary.encode(texts[i]), expected[i]) << texts[i];
    EXPECT_EQ(again.encode(texts[i]), expected[i]) << texts[i];
  }
  EXPECT_EQ(vocabulary.kind(), VocabularyKind::sentencepiece);
  EXPECT_EQ(vocabulary.size(), 267);
}

TEST(MetaspaceBpe, HasTheIdsOfItsFile) {
  expect_ids(
      metaspace_file(kLegacySteps, "null"),
      {{265, 262, 265, 264}, {259, 265, 262}, {259, 259, 265}, {264, 266, 198, 172, 13}, {}});
  expect_ids(metaspace_file(kReplaceStep, kSplitStep),
             {{266, 265, 264}, {265, 262}, {259, 265}, {260, 266, 198, 172, 13}, {}});
  expect_ids(metaspace_file("null", kMetaspaceStep),
             {{265, 262, 265, 264}, {265, 262}, {259, 265}, {264, 266, 198, 172, 13}, {}});
}

TEST(MetaspaceBpe, TextsBeginAsTheTemplateSays) {
  const auto start = [](const std::string& single) {
    return Vocabulary::from_json(metaspace_file(kReplaceStep, kSplitStep, kMetaspaceMerges,
                                                R"({"type":"TemplateProcessing","single":[)" +
                                                    single + R"(],"pair":[]})"),
                                 "x")
        .text_start();
  };
  const std::string text = R"({"Sequence":{"id":"A","type_id":0}})";
  const std::string token = R"({"SpecialToken":{"id":"<s>","type_id":0}})";
  EXPECT_EQ(start(text), Ids{});
  EXPECT_EQ(start(token + "," + text), Ids{1});
  EXPECT_DATA_ERROR(start(text + "," + token), "behind every text");
}

TEST(MetaspaceBpe, RulesThatNoSentencePieceModelHasAreRefused) {
  const auto load = [](const std::string& json) { return Vocabulary::from_json(json, "x"); };
  EXPECT_DATA_ERROR(load(metaspace_file(R"({"type":"NFKC"})", "null")),
                    "normalizer {\"type\":\"NFKC\"}");
  EXPECT_DATA_ERROR(load(metaspace_file("null", kSplitStep)), "splits text at blanks");
  EXPECT_DATA_ERROR(load(metaspace_file(kReplaceStep, kSplitStep, R"(["a","b"],["▁","a"])")),
                    "lists 0 of 1 ways to join 'abc'");
  EXPECT_DATA_ERROR(load(metaspace_file(kReplaceStep, kSplitStep,
                                        R"(["a","b"],["▁","a"],["▁a","b"],["ab","c"],["▁","ab"])")),
                    "joins '▁ab' in merges 2 and 4, with others between them");
  EXPECT_DATA_ERROR(load(metaspace_file(kReplaceStep, kSplitStep, R"(["a","x"])")),
                    "not all in the vocabulary");
}

// The library tokenizers trains such files, which have the pre-tokenizer Metaspace and no
// normalizer; ids as above.
TEST(MetaspaceBpe, RulesThatNoSentencePieceModelHasAreKeptIfTheFileWasTrained) {
  const Vocabulary vocabulary = Vocabulary::from_json(
      metaspace_file("null", kMetaspaceStep, R"(["a","b"],["▁","a"])", "null",
                     R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first"})"),
      "x");
  EXPECT_EQ(vocabulary.kind(), VocabularyKind::bpe);
  EXPECT_EQ(vocabulary.encode("abc ab a"), (Ids{259, 263, 262, 259, 263, 264}));
  EXPECT_EQ(vocabulary.encode("aabcé\n"), (Ids{264, 263, 262, 198, 172, 13}));
  EXPECT_EQ(vocabulary.decode(Ids{264, 263, 262, 198, 172, 13}), "aabcé\n");
}

}  // namespace
}  // namespace choir
#endif
