// Tokenizers that add a blank in front of texts: over bytes (ByteLevel with add_prefix_space), and
// over characters as the library tokenizers trains them (Metaspace). The expected ids and texts are
// those of tokenizers 0.23: Tokenizer.from_str(JSON).encode(TEXT).ids and .decode(ids,
// skip_special_tokens=False).
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "src/data/vocabulary/bpe_tokenizer.hpp"
#include "src/data/vocabulary/nfc.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"
#include "test/unit/data/scratch_folder.hpp"
#include "test/unit/data/vocabulary/golden_texts.hpp"

namespace choir {
namespace {

using Ids = std::vector<std::int32_t>;

struct Case {
  const char* text;
  Ids ids;
  const char* decoded;
};

std::string prefixing(bool expression, const std::string& normalizer = "null") {
  return test::tokenizer_json(
      R"("a":0,"b":1,"c":2,"ab":3,"Ġ":4,"Ġa":5,"Ġab":6,"Ċ":7)",
      R"(["a","b"],["Ġ","a"],["Ġa","b"],["Ġ","ab"])",
      R"({"id":8,"content":"<s>","normalized":false,"special":true})",
      fmt::format(R"({{"type":"ByteLevel","add_prefix_space":true,"use_regex":{}}})", expression),
      normalizer);
}

void expect_cases(const std::string& json, const std::vector<Case>& cases) {
  const BpeTokenizer tokenizer = BpeTokenizer::from_json(json, "x");
  const Vocabulary vocabulary = Vocabulary::from_json(json, "x");
  const Vocabulary again = Vocabulary::from_json(vocabulary.to_json(), "y");
  EXPECT_EQ(vocabulary.kind(), VocabularyKind::bpe);
  EXPECT_EQ(vocabulary.to_json(), json);
  PieceCache cache;
  for (const Case& one : cases) {
    EXPECT_EQ(tokenizer.encode(one.text, cache), one.ids) << one.text;
    EXPECT_EQ(again.encode(one.text), one.ids) << one.text;
    EXPECT_EQ(vocabulary.decode(one.ids), one.decoded) << one.text;
  }
}

/// Any number of bytes at a time gives the same ids.
void expect_same_in_parts(const std::string& json, const std::string& text) {
  const BpeTokenizer tokenizer = BpeTokenizer::from_json(json, "x");
  PieceCache cache;
  const Ids whole = tokenizer.encode(text, cache);
  for (std::size_t step = 1; step < 40; ++step) {
    Ids ids;
    std::size_t done = 0;
    for (std::size_t end = 0; end < text.size();) {
      end = std::min(end + step, text.size());
      done +=
          tokenizer.encode_part(std::string_view(text).substr(done, end - done), end < text.size(),
                                "the text", static_cast<std::int64_t>(done), cache, ids);
    }
    EXPECT_EQ(ids, whole) << "by " << step;
  }
}

std::string many_stretches() {
  std::string text;
  for (int i = 0; i < 12; ++i) text += "ab<s>ab<s> ab  abc\u2581a ab ab ab ab ab ab ab ab c<s>";
  return text;
}

TEST(AddedBlanks, OfByteLevel) {
  for (const bool expression : {true, false})
    expect_cases(prefixing(expression), {{"ab ab", {6, 6}, " ab ab"},
                                         {" ab", {6}, " ab"},
                                         {"\nab", {4, 7, 3}, " \nab"},
                                         {"ab<s>ab<s> ab", {6, 8, 6, 8, 6}, " ab<s> ab<s> ab"},
                                         {"<s>ab", {8, 6}, "<s> ab"},
                                         {"", {}, ""},
                                         {"  ab", {4, 6}, "  ab"},
                                         {"<s><s>c", {8, 8, 4, 2}, "<s><s> c"},
                                         {"c\n\nab", {4, 2, 7, 7, 3}, " c\n\nab"}});
  std::string text;
  for (int i = 0; i < 12; ++i) text += "ab<s>ab<s> ab  abc\na ab ab ab ab ab ab\n\nab ab c<s>";
  expect_same_in_parts(prefixing(true), text);
  if (have_nfc()) expect_same_in_parts(prefixing(true, R"({"type":"NFC"})"), text);
}

// A conversation is converted in parts, of which those behind other text get no blank.
TEST(AddedBlanks, DependOnThePlaceInAWhole) {
  PieceCache cache;
  const BpeTokenizer always = BpeTokenizer::from_json(prefixing(true), "x");
  EXPECT_EQ(always.encode("ab", cache, {.behind_token = true}), (Ids{6}));
  EXPECT_EQ(always.encode("ab", cache, {.behind_text = true}), (Ids{3}));
}

TEST(AddedBlanks, OfByteLevelComeOncePerText) {
  std::string json = prefixing(false);
  const std::string byte_level = R"({"type":"ByteLevel","add_prefix_space":true)";
  json.replace(json.find(byte_level), byte_level.size(),
               R"({"type":"Sequence","pretokenizers":[{"type":"Digits"},)" + byte_level);
  const std::string end = R"("use_regex":false})";
  json.replace(json.find(end), end.size(), end + "]}");
  EXPECT_DATA_ERROR(BpeTokenizer::from_json(json, "x"),
                    "adds a blank to each piece of the pre-tokenizers before 'ByteLevel'");
}

struct Metaspace {
  const char* scheme = "always";
  bool split = true;
  const char* unknown = "\"<unk>\"";
  bool joins = false;
  bool bytes = false;
  const char* more = "";
  const char* decoder = "Metaspace";
  const char* normalizer = "null";
};

std::string metaspace_json(const Metaspace& of) {
  const std::string rules =
      fmt::format(R"("replacement":"▁","prepend_scheme":"{}","split":{}}})", of.scheme, of.split);
  return fmt::format(
      R"({{"version":"1.0","truncation":null,"padding":null,"added_tokens":[)"
      R"({{"id":0,"content":"<unk>","normalized":false,"special":true}},)"
      R"({{"id":1,"content":"<s>","normalized":false,"special":true}}],"normalizer":{},)"
      R"("pre_tokenizer":{{"type":"Metaspace",{},"post_processor":null,)"
      R"("decoder":{{"type":"{}",{},"model":{{"type":"BPE","dropout":null,"unk_token":{},)"
      R"("fuse_unk":{},"byte_fallback":{},"vocab":{{"<unk>":0,"<s>":1,"▁":2,"a":3,"b":4,"c":5,)"
      R"("é":6,"ab":7,"▁a":8,"abc":9,"▁ab":10,"bc":11,"b▁":12{}}},)"
      R"("merges":[["a","b"],["▁","a"],["ab","c"],["▁a","b"],["b","c"],["b","▁"]]}}}})",
      of.normalizer, rules, of.decoder, rules, of.unknown, of.joins, of.bytes, of.more);
}

TEST(AddedBlanks, OfMetaspaceInEachScheme) {
  const Ids joined{2, 5, 12, 5, 4}, split{2, 5, 4, 2, 5, 4};
  for (const bool splits : {true, false}) {
    const Ids& cb = splits ? split : joined;
    const std::vector<Case> always{{"abc ab", {2, 9, 2, 7}, "abc ab"},
                                   {" ab  abc", {2, 7, 2, 2, 9}, "ab  abc"},
                                   {"▁ab", {2, 7}, "ab"},
                                   {"ab<s>ab<s> ab", {2, 7, 1, 2, 7, 1, 2, 7}, "ab<s> ab<s> ab"},
                                   {"<s>ab", {1, 2, 7}, "<s> ab"},
                                   {"xyaé  z", {2, 0, 0, 3, 6, 2, 2, 0}, "<unk><unk>aé  <unk>"},
                                   {"", {}, ""},
                                   {"bcab▁a", {2, 11, 7, 8}, "bcab a"},
                                   {"cb cb", cb, "cb cb"}};
    expect_cases(metaspace_json({.split = splits}), always);
    std::vector<Case> first = always;
    first[3] = {"ab<s>ab<s> ab", {2, 7, 1, 7, 1, 2, 7}, "ab<s>ab<s> ab"};
    first[4] = {"<s>ab", {1, 7}, "<s>ab"};
    expect_cases(metaspace_json({.scheme = "first", .split = splits}), first);
    expect_cases(metaspace_json({.scheme = "never", .split = splits}),
                 {{"abc ab", {9, 2, 7}, "abc ab"},
                  {" ab  abc", {2, 7, 2, 2, 9}, " ab  abc"},
                  {"ab<s>ab<s> ab", {7, 1, 7, 1, 2, 7}, "ab<s>ab<s> ab"},
                  {"bcab▁a", {11, 7, 8}, "bcab a"},
                  {"cb cb", Ids(cb.begin() + 1, cb.end()), "cb cb"}});
    for (const char* scheme : {"always", "first", "never"}) {
      const Metaspace of{.scheme = scheme, .split = splits};
      expect_same_in_parts(metaspace_json(of), many_stretches());
      Metaspace normal = of;
      normal.normalizer = R"({"type":"NFC"})";
      if (have_nfc()) expect_same_in_parts(metaspace_json(normal), many_stretches());
    }
  }
  PieceCache cache;
  EXPECT_EQ(BpeTokenizer::from_json(metaspace_json({.scheme = "first"}), "x")
                .encode("ab", cache, {.behind_token = true}),
            (Ids{7}));
}

// The order of the bytes and of the joined unknown characters around them is that of the library.
TEST(AddedBlanks, MetaspaceHasTokensForCharactersOutsideItsVocabulary) {
  expect_cases(metaspace_json({.joins = true}),
               {{"xyaé  z", {2, 0, 3, 6, 2, 2, 0}, "<unk>aé  <unk>"}});
  const Metaspace bytes{
      .joins = true, .bytes = true, .more = R"(,"<0x78>":13,"<0xE2>":14,"<0x82>":15,"<0xAC>":16)"};
  const BpeTokenizer tokenizer = BpeTokenizer::from_json(metaspace_json(bytes), "x");
  PieceCache cache;
  EXPECT_EQ(tokenizer.encode("xyx", cache), (Ids{2, 13, 13, 0}));
  EXPECT_EQ(tokenizer.encode("yx€y y", cache), (Ids{2, 13, 14, 15, 16, 0, 2, 0}));
  EXPECT_EQ(tokenizer.encode("€ab", cache), (Ids{2, 14, 15, 16, 7}));
  EXPECT_EQ(tokenizer.decode(Ids{2, 14, 15, 16, 7}), "€ab");
  EXPECT_EQ(Vocabulary::from_json(metaspace_json(bytes), "x").encode("€ab"),
            (Ids{2, 14, 15, 16, 7}));
  // The library omits such characters without a word.
  const Vocabulary none = Vocabulary::from_json(metaspace_json({.unknown = "null"}), "x");
  EXPECT_EQ(none.encode("abc ab"), (Ids{2, 9, 2, 7}));
  EXPECT_DATA_ERROR(none.encode("ab xab", "'t'", 10),
                    "the character 'x' (U+0078) at byte 13 of 't' is not in the vocabulary");
}

TEST(AddedBlanks, OtherStepsBesideMetaspaceAreRefused) {
  const auto load = [](const Metaspace& of) {
    return Vocabulary::from_json(metaspace_json(of), "");
  };
  EXPECT_DATA_ERROR(load({.decoder = "BPEDecoder"}), "has the decoder 'BPEDecoder'");
  EXPECT_DATA_ERROR(load({.scheme = "last"}), "has the prepend_scheme \"last\"");
  EXPECT_DATA_ERROR(load({.unknown = "\"<none>\""}), "'unk_token' \"<none>\", which is not in");
  EXPECT_DATA_ERROR(load({.normalizer = R"({"type":"NFKC"})"}), "has the normalizer 'NFKC'");
}

}  // namespace
}  // namespace choir
