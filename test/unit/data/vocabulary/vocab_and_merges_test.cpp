// Tokenizers of transformers in several files. The expected ids are those of transformers 5.24:
// AutoTokenizer.from_pretrained(FOLDER)(TEXT)["input_ids"].
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "src/core/json_value.hpp"
#include "src/data/vocabulary/nfc.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "test/unit/data/scratch_folder.hpp"
#include "test/unit/data/vocabulary/golden_texts.hpp"

namespace choir {
namespace {

using Ids = std::vector<std::int32_t>;

struct VocabAndMerges : testing::Test {
  VocabAndMerges() {
    put("vocab.json", R"({"a":0,"b":1,"c":2,"ab":3,"Ġ":4,"Ġa":5,"Ġab":6,"Ċ":7})");
    put("merges.txt", "#version: 0.2\na b\nĠ a\nĠa b\r\nĠ ab\n");
  }
  void put(const std::string& name, const std::string& text) const {
    test::write_bytes(folder / name, text);
  }
  void put_config(const std::string& more) const {
    put("tokenizer_config.json", R"({"tokenizer_class":"GPT2TokenizerFast")" + more + "}");
  }
  Vocabulary load() const { return Vocabulary::load(folder / "vocab.json"); }

  test::ScratchFolder folder;
};

/// The files of the golden GPT-2, whose ids are those of the real one.
TEST_F(VocabAndMerges, OfGpt2HaveItsIds) {
  const auto whole = parsed_json(test::golden_tokenizer("gpt2"));
  nlohmann::json entries = whole["model"]["vocab"];
  entries["<|endoftext|>"] = 50256;
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : whole["model"]["merges"])
    merges += merge.is_string() ? merge.get<std::string>() + "\n"
                                : fmt::format("{} {}\n", merge[0].get<std::string>(),
                                              merge[1].get<std::string>());
  put("vocab.json", dumped(entries));
  put("merges.txt", merges);
  const Vocabulary vocabulary = Vocabulary::load(folder.path());
  for (const test::GoldenText& text : test::golden_texts()) {
    EXPECT_EQ(vocabulary.encode(text.text), text.gpt2) << text.text;
    EXPECT_EQ(vocabulary.decode(text.gpt2), text.text);
  }
  EXPECT_EQ(vocabulary.end_of_text(), 50256);
  EXPECT_EQ(Vocabulary::from_json(vocabulary.to_json(), "y").hash(), vocabulary.hash());
}

TEST_F(VocabAndMerges, HaveTheTokensOfTheFilesBesideThem) {
  EXPECT_EQ(load().encode("ab<|endoftext|>ab"), (Ids{3, 8, 3}));
  put("added_tokens.json", R"({"<|im_start|>":8,"<x>":9})");
  put("special_tokens_map.json", R"({"bos_token":"<|im_start|>","eos_token":"<|im_start|>",)"
                                 R"("unk_token":{"content":"<x>","lstrip":true}})");
  EXPECT_EQ(load().encode("ab ab<x> c<|im_start|>c"), (Ids{3, 6, 9, 4, 2, 8, 2}));
  EXPECT_EQ(load().encode("ab <x> c"), (Ids{3, 4, 9, 4, 2}));
  EXPECT_EQ(load().size(), 10);
  put_config(
      R"(,"added_tokens_decoder":{)"
      R"("8":{"content":"<x>","lstrip":true,"rstrip":true,"special":false},)"
      R"("9":{"content":"<|endoftext|>","special":true}},"additional_special_tokens":["<y>"])");
  EXPECT_EQ(load().encode("ab <x> c<|endoftext|><y>"), (Ids{3, 8, 2, 9, 10}));
}

TEST_F(VocabAndMerges, FollowTheSettings) {
  put_config(R"(,"add_bos_token":true)");
  EXPECT_EQ(load().text_start(), (Ids{8}));
  EXPECT_EQ(load().encode("ab ab"), (Ids{3, 6}));
  put_config(R"(,"add_prefix_space":true)");
  EXPECT_EQ(load().text_start(), Ids{});
  EXPECT_EQ(load().encode("ab<|endoftext|>ab"), (Ids{6, 8, 6}));
  put_config(R"(,"bos_token":null,"eos_token":null,"unk_token":null)");
  EXPECT_EQ(load().size(), 8);
}

TEST_F(VocabAndMerges, AreSplitAsTheirClassDoes) {
  put("vocab.json", R"({"a":0,"1":1,"2":2,"12":3})");
  put("merges.txt", "1 2\n");
  EXPECT_EQ(load().encode("12a"), (Ids{3, 0}));
  if (!have_nfc()) return;
  put("config.json", R"({"model_type":"qwen2"})");
  EXPECT_EQ(load().encode("12a"), (Ids{1, 2, 0}));
  put("config.json", R"({"model_type":"llama","tokenizer_class":"Qwen2TokenizerFast"})");
  EXPECT_EQ(load().encode("12a"), (Ids{1, 2, 0}));
}

TEST_F(VocabAndMerges, AreRefusedWhereTheyDoNotSayTheirIds) {
  put("tokenizer_config.json", R"({"tokenizer_class":"RobertaTokenizer"})");
  EXPECT_DATA_ERROR(load(), "is of the class RobertaTokenizer");
  put("tokenizer_config.json", "{}");
  put("config.json", R"({"model_type":"llama"})");
  EXPECT_DATA_ERROR(load(), "a model of type llama has no default");
  put_config("");
  put("added_tokens.json", R"({"<x>":20})");
  EXPECT_DATA_ERROR(load(), "gives the added token '<x>' the id 20, and transformers numbers it 8");
  std::filesystem::remove(folder / "added_tokens.json");
  put("merges.txt", "a b\na b c\n");
  EXPECT_DATA_ERROR(load(), "has line 2 of merges.txt, which is not two entries");
  std::filesystem::remove(folder / "merges.txt");
  EXPECT_DATA_ERROR(load(), "merges.txt, which joins them, is not beside it");
}

}  // namespace
}  // namespace choir
