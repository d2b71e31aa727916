// Tests of tokenizers of GGUF files: a tokenizer that is exported in the format of llama.cpp gives
// the same ids when it is imported.
#include "src/models/gpt/foreign/gguf.hpp"

#include <gtest/gtest.h>

#include <choir_features.hpp>

#include <functional>

#include "choir/core/error.hpp"
#include "src/data/vocabulary/sentencepiece.hpp"
#include "src/models/gpt/foreign/gguf.hpp"
#include "test/support/growth.hpp"
#include "test/unit/data/vocabulary/golden_texts.hpp"

namespace choir {
namespace {

Vocabulary through_gguf(const std::string& json, int padding) {
  const int size = Vocabulary::from_json(json, "here").size();
  return Vocabulary::from_json(
      vocabulary_of_gguf(tokenizer_of_vocabulary(json, size + padding), "a.gguf"), "a.gguf");
}

TEST(GgufTokenizer, BytePairsGiveTheIdsOfTheirOwnLibrary) {
  for (const std::string name : {"gpt2", "smollm2"}) {
    const Vocabulary vocabulary = through_gguf(test::golden_tokenizer(name), 5);
    for (const test::GoldenText& golden : test::golden_texts())
      EXPECT_EQ(vocabulary.encode(golden.text), name == "gpt2" ? golden.gpt2 : golden.smollm2)
          << name << ": " << golden.text;
  }
}

/// The metadata of a small tokenizer without `without`, and with the additions of `add`.
GgufMetadata changed(
    const std::string& without,
    const std::function<void(GgufMetadata&)>& add = [](GgufMetadata&) {}) {
  const GgufMetadata whole = tokenizer_of_vocabulary(test::tiny_tokenizer(), 300);
  GgufMetadata made;
  for (const auto& [key, value] : whole.pairs())
    if (key != "tokenizer.ggml." + without) made.add(key, value);
  add(made);
  return made;
}

void expect_refused(const GgufMetadata& metadata, const std::string& why) {
  try {
    vocabulary_of_gguf(metadata, "a.gguf");
    ADD_FAILURE() << "read in spite of: " << why;
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
}

TEST(GgufTokenizer, RefusesWhatLiesOrIsUnknown) {
  EXPECT_NO_THROW(vocabulary_of_gguf(changed("none"), "a.gguf"));
  expect_refused(changed("tokens"), "has no tokens");
  expect_refused(changed("merges"), "has no merges");
  expect_refused(changed("pre"), "does not have the key 'tokenizer.ggml.pre'");
  const auto with = [](const char* key, GgufValue value) {
    return [key, value](GgufMetadata& m) { m.add(std::string("tokenizer.ggml.") + key, value); };
  };
  using Types = std::vector<std::int32_t>;
  expect_refused(changed("pre", with("pre", std::string("viking"))), "'viking'");
  expect_refused(changed("model", with("model", std::string("t5"))), "'t5'");
  expect_refused(changed("model", with("model", std::string("llama"))), "but 0 scores");
  expect_refused(changed("token_type", with("token_type", GgufArray(Types{1, 1}))),
                 "300 tokens, but 2 types");
  expect_refused(changed("token_type", with("token_type", GgufArray(Types(300, 9)))),
                 "unknown type 9");
  expect_refused(changed("bos_token_id", with("bos_token_id", std::uint32_t{300})),
                 "'tokenizer.ggml.bos_token_id' is 300");
}

#ifdef CHOIR_HAVE_SENTENCEPIECE

TEST(GgufTokenizer, SentencePieceGoesOutAndInAgain) {
  using Kind = SentencePieceFile::Kind;
  SentencePieceFile file{.pieces = {{"<unk>", 0, Kind::unknown},
                                    {"<s>", 0, Kind::control},
                                    {"</s>", 0, Kind::control},
                                    {"▁", -2, Kind::normal},
                                    {"a", -3, Kind::normal},
                                    {"▁a", -1, Kind::normal}},
                         .model = SentencePieceFile::Model::bpe,
                         .squeezes_blanks = false,
                         .charsmap = ""};
  const std::string json = sentencepiece_json(file.bytes(), true);
  const Vocabulary vocabulary = through_gguf(json, 2);
  EXPECT_EQ(vocabulary.size(), 8);
  EXPECT_EQ(vocabulary.encode("a aa"), (std::vector<std::int32_t>{5, 5, 4}));
  EXPECT_EQ(vocabulary.text_start(), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(vocabulary.end_of_text(), 2);
  file.model = SentencePieceFile::Model::unigram;
  EXPECT_THROW(tokenizer_of_vocabulary(sentencepiece_json(file.bytes(), true), 6), DeckError);
}

#endif

TEST(GgufTokenizer, TimeGrowsWithTheNumberOfTokens) {
  const auto seconds = [](int count) {
    std::vector<std::string> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(std::to_string(1'000'000 + i));
    GgufMetadata metadata;
    metadata.add("tokenizer.ggml.model", std::string("gpt2"));
    metadata.add("tokenizer.ggml.pre", std::string("gpt-2"));
    metadata.add("tokenizer.ggml.merges", GgufArray(std::vector<std::string>()));
    metadata.add("tokenizer.ggml.tokens", GgufArray(std::move(tokens)));
    return test::least_seconds([&] { vocabulary_of_gguf(metadata, "a.gguf"); });
  };
  EXPECT_LT(test::growth("tokens of a GGUF file", seconds(40000), seconds(5000)),
            test::kEightfoldInput);
}

TEST(GgufTokenizer, ATokenThatIsNotUtf8IsNamed) {
  GgufMetadata metadata;
  metadata.add("tokenizer.ggml.model", std::string("gpt2"));
  metadata.add("tokenizer.ggml.pre", std::string("gpt-2"));
  metadata.add("tokenizer.ggml.merges", GgufArray(std::vector<std::string>()));
  metadata.add("tokenizer.ggml.tokens", GgufArray(std::vector<std::string>{"a", "\xff"}));
  expect_refused(metadata, "which is not UTF-8");
}

}  // namespace
}  // namespace choir
