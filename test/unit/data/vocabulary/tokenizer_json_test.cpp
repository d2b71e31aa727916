// Tests of the forms that a tokenizer.json may have, and of every refusal of another form.
#include "src/data/vocabulary/tokenizer_json.hpp"

#include <gtest/gtest.h>

#include "src/data/vocabulary/bpe_tokenizer.hpp"
#include "src/data/vocabulary/nfc.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "test/support/growth.hpp"
#include "test/support/peak_memory.hpp"
#include "test/unit/data/scratch_folder.hpp"
#include "test/unit/data/vocabulary/golden_texts.hpp"

namespace choir {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr const char* kVocabulary = R"("a":0,"b":1,"c":2,"ab":3,"abc":4,"bc":5)";
constexpr const char* kMerges = R"(["b","c"],["a","b"],["ab","c"],["a","bc"])";
constexpr const char* kByteLevel = R"({"type":"ByteLevel","add_prefix_space":false})";

/// The smallest tokenizer, with `from`, which must occur, replaced by `to`.
std::string edited(const std::string& from, const std::string& to) {
  std::string json =
      test::tokenizer_json(kVocabulary, kMerges, R"({"id":6,"content":"<s>","special":true})");
  const std::size_t at = json.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return json.replace(at, from.size(), to);
}

Ids ids_of(const std::string& json, std::string_view text, const BpeEncoding& how = {}) {
  PieceCache cache;
  return BpeTokenizer::from_json(json, "x").encode(text, cache, how);
}

TEST(TokenizerJson, IsKeptToTheByte) {
  const test::ScratchFolder folder;
  const std::string json = edited("}}", " }\n}\n");
  test::write_bytes(folder / "tokenizer.json", json);
  EXPECT_EQ(BpeTokenizer::load(folder / "tokenizer.json").json(), json);
  EXPECT_DATA_ERROR(BpeTokenizer::load(folder / "none"), "cannot be read: No such file");
}

TEST(TokenizerJson, HasMergesInBothSpellings) {
  const std::string pairs = edited("1.0", "1.0");
  const std::string lines = edited(kMerges, R"("b c","a b","ab c","a bc")");
  EXPECT_EQ(ids_of(pairs, "abc"), (Ids{4}));
  EXPECT_EQ(ids_of(lines, "abc"), (Ids{4}));
  EXPECT_EQ(ids_of(lines, "abcab"), (Ids{4, 3}));
}

TEST(TokenizerJson, MayIgnoreMergesForWholePieces) {
  const std::string without = edited(kMerges, R"(["b","c"])");
  EXPECT_EQ(ids_of(without, "abc"), (Ids{0, 5}));
  std::string with = without;
  with.replace(with.find(R"("type":"BPE")"), 12, R"("type":"BPE","ignore_merges":true)");
  EXPECT_EQ(ids_of(with, "abc"), (Ids{4}));
}

TEST(TokenizerJson, PutsItsTemplateAround) {
  const std::string json = edited(
      R"("post_processor":null)",
      R"("post_processor":{"type":"Sequence","processors":[)"
      R"({"type":"ByteLevel","trim_offsets":false},)"
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"<s>","type_id":0}}],"pair":[],)"
      R"("special_tokens":{"<s>":{"id":"<s>","ids":[6],"tokens":["<s>"]}}}]})");
  EXPECT_EQ(ids_of(json, "ab"), (Ids{3}));
  EXPECT_EQ(ids_of(json, "ab", {.around = true}), (Ids{6, 3, 6}));
}

// Blanks beside a token, words around it, and the normal form of the searched text.
TEST(TokenizerJson, FindsAddedTokensByTheirFlags) {
  const auto with = [](const std::string& added, const std::string& normalizer = "null") {
    return test::tokenizer_json(std::string(kVocabulary) + ",\"\u0120\":7,\"\u010a\":8", kMerges,
                                added, kByteLevel, normalizer);
  };
  const std::string blanks =
      with(R"({"id":9,"content":"<l>","lstrip":true},{"id":10,"content":"<r>","rstrip":true})");
  EXPECT_EQ(ids_of(blanks, "a \n<l> b"), (Ids{0, 9, 7, 1}));
  EXPECT_EQ(ids_of(blanks, "a <r>\n\n b"), (Ids{0, 7, 10, 1}));
  EXPECT_EQ(ids_of(blanks, "<r>  <l>"), (Ids{10, 9}));
  const std::string words = with(R"({"id":9,"content":"ca","single_word":true})");
  EXPECT_EQ(ids_of(words, "ca bca cab\nca"), (Ids{9, 7, 5, 0, 7, 2, 3, 8, 9}));
  const std::string longest =
      with(R"({"id":9,"content":"<a"},{"id":10,"content":"<a>"},{"id":11,"content":"a><"})");
  EXPECT_EQ(ids_of(longest, "<a><a"), (Ids{10, 9}));
  if (!have_nfc()) return;
  const std::string normal = with(
      "{\"id\":9,\"content\":\"A\u030a\",\"normalized\":true},"
      "{\"id\":10,\"content\":\"e\u0301\",\"normalized\":false}",
      R"({"type":"NFC"})");
  EXPECT_EQ(ids_of(normal, "\u212Ba\u00c5"), (Ids{9, 0, 9}));
  EXPECT_EQ(ids_of(normal, "e\u0301"), (Ids{10}));
}

// transformers stores those of its last call.
TEST(TokenizerJson, TruncationAndPaddingDoNotChangeIds) {
  std::string json = edited(R"("padding":null)", R"("padding":{"strategy":"BatchLongest"})");
  const std::string none = R"("truncation":null)";
  json.replace(json.find(none), none.size(), R"("truncation":{"max_length":2,"stride":0})");
  EXPECT_EQ(ids_of(json, "abcabca"), ids_of(edited("1.0", "1.0"), "abcabca"));
}

TEST(TokenizerJson, IsCutToTheRowsOfAModel) {
  const std::string json = edited("1.0", "1.0");  // ab 3, abc 4, bc 5, <s> 6
  const Vocabulary whole = Vocabulary::from_json(json, "x");
  const Vocabulary four = whole.within(4);
  EXPECT_EQ(four.size(), 4);
  EXPECT_EQ(four.encode("abcab"), (Ids{3, 2, 3})) << "abc is no entry, so nothing becomes it";
  EXPECT_EQ(whole.encode("abcab"), (Ids{4, 3}));
  EXPECT_EQ(whole.within(7).encode("abcab"), (Ids{4, 3}));
}

TEST(TokenizerJson, RefusesModelsOfOtherKinds) {
  const auto model = [](const std::string& extra) {
    return edited(R"("type":"BPE")", R"("type":"BPE",)" + extra);
  };
  EXPECT_DATA_ERROR(ids_of("{", ""), "tokenizer 'x':1:2: not valid JSON: the text ends too early");
  EXPECT_DATA_ERROR(ids_of("[]", ""), "is no JSON object");
  EXPECT_DATA_ERROR(ids_of(std::string(100, '['), ""), "nested deeper than 64 levels");
  EXPECT_DATA_ERROR(ids_of("{}", ""), "has no object 'model' in the file");
  EXPECT_DATA_ERROR(ids_of(edited("1.0", "2.0"), ""), "has version \"2.0\"");
  EXPECT_DATA_ERROR(ids_of(edited(R"("padding":null)", R"("padding":[])"), ""), "has 'padding'");
  EXPECT_DATA_ERROR(ids_of(edited(R"("truncation":null)", R"("truncation":1)"), ""),
                    "has 'truncation'");
  EXPECT_DATA_ERROR(ids_of(edited(R"("padding")", R"("chat")"), ""),
                    "unknown key 'chat' in the file");
  EXPECT_DATA_ERROR(ids_of(edited(R"("BPE")", R"("Unigram")"), ""), "model of type \"Unigram\"");
  EXPECT_DATA_ERROR(ids_of(model(R"("dropout":0.1)"), ""), "'dropout'");
  EXPECT_DATA_ERROR(ids_of(model(R"("end_of_word_suffix":"</w>")"), ""), "'end_of_word_suffix'");
  EXPECT_DATA_ERROR(ids_of(model(R"("continuing_subword_prefix":"##")"), ""),
                    "'continuing_subword_prefix'");
  EXPECT_DATA_ERROR(ids_of(model(R"("byte_fallback":true)"), ""), "'byte_fallback'");
  EXPECT_DATA_ERROR(ids_of(model(R"("ignore_merges":1)"), ""), "'ignore_merges'");
  EXPECT_DATA_ERROR(ids_of(model(R"("unk_token":3)"), ""), "'unk_token'");
  EXPECT_DATA_ERROR(ids_of(model(R"("scores":[])"), ""), "unknown key 'scores' in the model");
  EXPECT_EQ(ids_of(model(R"("continuing_subword_prefix":"","unk_token":"a","fuse_unk":true)"), "c"),
            (Ids{2}));
}

TEST(TokenizerJson, RefusesAVocabularyThatContradictsItself) {
  const auto vocabulary = [](const std::string& from, const std::string& to) {
    return ids_of(edited(from, to), "");
  };
  EXPECT_DATA_ERROR(vocabulary(R"("b":1)", R"("b":0)"), "the id 0, which another entry has");
  EXPECT_DATA_ERROR(vocabulary(R"("b":1)", R"("b":-1)"), "the id -1, which is no number");
  EXPECT_DATA_ERROR(vocabulary(R"("b":1)", R"("b":16777216)"), "the id 16777216");
  EXPECT_DATA_ERROR(vocabulary(R"("b":1)", R"("b":1.5)"), "the id 1.5");
  EXPECT_DATA_ERROR(vocabulary(R"("b":1)", R"("":1)"), "an empty entry");
  EXPECT_DATA_ERROR(vocabulary(kMerges, R"(["b","d"])"),
                    "merge 0 with 'd', which is not in the vocabulary");
  EXPECT_DATA_ERROR(vocabulary(kMerges, R"(["a","c"])"), "merge 0 with 'ac'");
  EXPECT_DATA_ERROR(vocabulary(kMerges, R"("a b","ab")"), "merge 1 that is not two entries");
  EXPECT_DATA_ERROR(vocabulary(kMerges, R"("a b c")"), "merge 0 that is not two entries");
  EXPECT_DATA_ERROR(vocabulary(kMerges, R"(["a","b","c"])"), "merge 0 that is not two entries");
  EXPECT_DATA_ERROR(vocabulary(kMerges, R"("a b",["a","b"])"), "merge of ids 0 and 1 twice");
  EXPECT_DATA_ERROR(vocabulary(R"("merges":[)" + std::string(kMerges) + "]", R"("merges":{})"),
                    "has no list 'merges'");
}

TEST(TokenizerJson, RefusesAddedTokensThatContradictIt) {
  const auto added = [](const std::string& token) {
    return ids_of(test::tokenizer_json(kVocabulary, kMerges, token), "");
  };
  EXPECT_DATA_ERROR(added(R"({"id":2,"content":"<s>"})"), "'<s>' the id 2, which another entry");
  EXPECT_DATA_ERROR(added(R"({"id":7,"content":"ab"})"), "the id 7, its vocabulary gives it 3");
  EXPECT_DATA_ERROR(added(R"({"id":7,"content":""})"), "an added token without content");
  EXPECT_DATA_ERROR(added(R"({"id":7})"), "no text 'content' in an added token");
  EXPECT_DATA_ERROR(added("3"), "an added token that is no object");
  EXPECT_DATA_ERROR(added(R"({"content":"x"})"), "the added token 'x' the id null");
  EXPECT_DATA_ERROR(added(R"({"id":7,"content":"x"},{"id":8,"content":"x"})"), "'x' twice");
  EXPECT_DATA_ERROR(added(R"({"id":7,"content":"x","lstrip":"yes"})"), "'lstrip'");
  EXPECT_DATA_ERROR(added(R"({"id":7,"content":"x","role":"user"})"), "unknown key 'role'");
}

TEST(TokenizerJson, RefusesWhatItDoesNotKnowByName) {
  const auto with = [](const std::string& pre_tokenizer, const std::string& normalizer = "null",
                       const std::string& post = "null") {
    return ids_of(test::tokenizer_json(kVocabulary, kMerges, "", pre_tokenizer, normalizer, post),
                  "");
  };
  EXPECT_DATA_ERROR(with(kByteLevel, R"({"type":"Lowercase"})"), "the normalizer 'Lowercase'");
  EXPECT_DATA_ERROR(with(kByteLevel, R"({"type":"Sequence","normalizers":[{"type":"NFKC"}]})"),
                    "'NFKC'");
  EXPECT_DATA_ERROR(with(kByteLevel, R"("NFC")"), "a normalizer that is no object");
  EXPECT_DATA_ERROR(with("null"), "no 'ByteLevel' among its pre-tokenizers");
  EXPECT_DATA_ERROR(with(R"({"type":"BertPreTokenizer"})"), "the pre-tokenizer 'BertPreTokenizer'");
  EXPECT_DATA_ERROR(with(R"({"type":"Metaspace","replacement":"_"})"),
                    "replaces blanks by \"_\" in the pre-tokenizer Metaspace");
  EXPECT_DATA_ERROR(with(R"({"type":"Digits","punctuation":true})"), "unknown key 'punctuation'");
  EXPECT_DATA_ERROR(with(R"({"type":"Sequence","pretokenizers":[)" + std::string(kByteLevel) +
                         R"(,{"type":"Digits"}]})"),
                    "'Digits' behind 'ByteLevel'");
  EXPECT_DATA_ERROR(with(R"({"type":"Split","pattern":{"Regex":"\\w+"},"behavior":"Isolated"})"),
                    "regular expression that is unknown here: \\w+");
  EXPECT_DATA_ERROR(with(R"({"type":"Split","pattern":{"String":" "},"behavior":"Isolated"})"),
                    "splits at a text");
  EXPECT_DATA_ERROR(with(R"({"type":"Split","pattern":{"Regex":"x"},"behavior":"MergedWithNext"})"),
                    "behavior 'MergedWithNext'");
  EXPECT_DATA_ERROR(with(kByteLevel, "null", R"({"type":"BertProcessing"})"),
                    "the post-processor 'BertProcessing'");
  const auto single = [&](const std::string& parts) {
    return with(kByteLevel, "null",
                R"({"type":"TemplateProcessing","special_tokens":{"s":{"ids":[99]}},"single":[)" +
                    parts + "]}");
  };
  EXPECT_DATA_ERROR(single(""), "has no text in the template");
  EXPECT_DATA_ERROR(single(R"({"Sequence":{"id":"B"}})"), "not exactly one text");
  EXPECT_DATA_ERROR(single(R"({"SpecialToken":{"id":"t"}})"), "no object 't'");
  EXPECT_DATA_ERROR(single(R"({"SpecialToken":{"id":"s"}})"), "has id 99 in the template");
  EXPECT_DATA_ERROR(ids_of(edited(R"("decoder":{"type":"ByteLevel"})", R"("decoder":null)"), ""),
                    "the decoder 'null'");
  EXPECT_DATA_ERROR(ids_of(edited(R"("decoder":{"type":"ByteLevel"})",
                                  R"("decoder":{"type":"Sequence","decoders":[{"type":"Fuse"}]})"),
                           ""),
                    "the decoder 'Fuse'");
}

TEST(TokenizerJson, NamesTheModelThatItDoesNotRead) {
  EXPECT_DATA_ERROR(ids_of(R"({"model":{"vocab":[["x",-1.5]],"type":"Unigram"}})", ""),
                    "model of type \"Unigram\"");
}

TEST(TokenizerJson, AnEntryThatIsGivenTwiceIsNamedWithBothPositions) {
  const std::string json = edited(R"("b":1)", R"("b":1,"\u0061":6)");
  EXPECT_DATA_ERROR(ids_of(json, ""),
                    fmt::format("tokenizer 'x':1:{}: key 'model.vocab.a' is given twice (first in "
                                "column {})",
                                json.find(R"("\u0061")") + 1, json.find(R"("a":0)") + 1));
}

// Small files that asked for a large table, for endless recursion, or for work that grew as the
// square of their size.
TEST(TokenizerJson, RefusesWhatWouldCostFarMoreThanItsSize) {
  std::string splitters;
  for (int i = 0; i < 40000; ++i) splitters += R"({"type":"Digits"},)";
  EXPECT_DATA_ERROR(ids_of(test::tokenizer_json(kVocabulary, kMerges, "",
                                                R"({"type":"Sequence","pretokenizers":[)" +
                                                    splitters + kByteLevel + "]}"),
                           "a1"),
                    "has 40001 pre-tokenizers, more than 16");
  EXPECT_DATA_ERROR(
      ids_of(test::tokenizer_json(kVocabulary, kMerges,
                                  R"({"id":6,"content":")" + std::string(100000, 'x') + "\"}"),
             ""),
      "an added token of 100000 bytes, more than 4096");
  EXPECT_DATA_ERROR(ids_of(edited(R"("b":1)", R"("b":16777215)"), ""),
                    "gives 'b' the id 16777215, although it has 7 entries");
  std::string ids = "0", parts;
  for (int i = 0; i < 1000; ++i) {
    ids += ",0";
    parts += R"({"SpecialToken":{"id":"s"}},)";
  }
  EXPECT_DATA_ERROR(
      ids_of(test::tokenizer_json(kVocabulary, kMerges, "", kByteLevel, "null",
                                  R"({"type":"TemplateProcessing","special_tokens":{"s":{"ids":[)" +
                                      ids + R"(]}},"single":[)" + parts +
                                      R"({"Sequence":{"id":"A"}}]})"),
             ""),
      "more than 1000 ids around a text");
}

TEST(TokenizerJson, TimeGrowsWithTheNumberOfAddedTokens) {
  const auto seconds = [](int tokens) {
    std::string added;
    for (int i = 0; i < tokens; ++i)
      added += fmt::format(R"({}{{"id":{},"content":"<{:06}>"}})", i > 0 ? "," : "", 6 + i, i);
    const std::string json = test::tokenizer_json(kVocabulary, kMerges, added);
    return test::least_seconds(
        [&] { EXPECT_EQ(BpeTokenizer::from_json(json, "x").vocab_size(), 6 + tokens); });
  };
  EXPECT_LT(test::growth("added tokens", seconds(32000), seconds(4000)), test::kEightfoldInput);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The shortest text of an entry: a name of four letters, and no blanks. The bound counts the file
// itself and the tables that are built from it.
TEST(TokenizerJson, MemoryIsAMultipleOfTheFile) {
  std::string vocabulary;
  for (int i = 0; i < 400000; ++i) {
    std::string name;
    for (int left = i; name.size() < 4; left /= 26) name += static_cast<char>('a' + left % 26);
    vocabulary += fmt::format("{}\"{}\":{}", i > 0 ? "," : "", name, i);
  }
  for (const char* whole : {"false", "true"}) {
    std::string json = test::tokenizer_json(vocabulary, "", "");
    json.replace(json.find(R"("type":"BPE")"), 12,
                 fmt::format(R"("type":"BPE","ignore_merges":{})", whole));
    const long grown = test::peak_growth(
        [&] { EXPECT_EQ(BpeTokenizer::from_json(json, "x").vocab_size(), 400000); });
    EXPECT_GE(grown, 0);
    EXPECT_LE(grown, static_cast<long>(12 * json.size())) << whole;
  }
}
#endif

}  // namespace
}  // namespace choir
