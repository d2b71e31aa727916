// Tests of the settings beside a tokenizer: they pass through the files of transformers and the
// keys of GGUF without loss.
#include "src/models/gpt/foreign/tokenizer_settings.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"
#include "src/models/gpt/foreign/exported_tokenizer.hpp"
#include "src/models/gpt/foreign/gguf.hpp"
#include "src/store/directory.hpp"
#include "test/unit/data/scratch_folder.hpp"
#include "test/unit/data/vocabulary/golden_texts.hpp"

namespace choir {
namespace {

using Json = nlohmann::ordered_json;
using Files = std::map<std::string, std::string>;

Json parsed(const TokenizerSettings& settings, const std::string& name) {
  return parsed_ordered_json(settings.file(name));
}

GgufMetadata tokens_of(std::vector<std::string> tokens) {
  GgufMetadata m;
  m.add("tokenizer.ggml.model", std::string("gpt2"));
  m.add("tokenizer.ggml.tokens", GgufArray(std::move(tokens)));
  return m;
}

TokenizerSettings in_folder(const test::ScratchFolder& folder, const Files& files) {
  for (const auto& [name, text] : files) write_text_file(folder.path() + "/" + name, text);
  return TokenizerSettings::of_folder(folder.path());
}

const Files kInstruct{
    {"config.json", R"({"model_type": "llama", "bos_token_id": 0, "eos_token_id": [1, 3, 2]})"},
    {"generation_config.json", R"({"bos_token_id": 0, "eos_token_id": [1, 3, 2], "do_sample": true,
      "temperature": 0.6, "top_p": 0.9, "top_k": 20, "max_length": 77})"},
    {"tokenizer_config.json",
     R"({"bos_token": "<s>", "eos_token": {"content": "<eot>", "special": true},
      "pad_token": "<pad>", "unk_token": null, "add_bos_token": true, "padding_side": "left",
      "model_max_length": 1000000000000000019884624838656})"},
    {"chat_template.jinja", "{% for m in messages %}é{{ m['content'] }}\n{% endfor %}"},
};

TEST(TokenizerSettings, KeysOfGguf) {
  const test::ScratchFolder folder;
  const TokenizerSettings settings = in_folder(folder, kInstruct);
  EXPECT_EQ(settings.ends(), (std::vector<std::int64_t>{1, 3, 2}));
  const GgufMetadata m = settings.added_to(tokens_of({"<s>", "<end>", "<eot>", "<eom>", "<pad>"}));
  const auto id = [&](const char* name) {
    const auto* value = m.get<std::uint32_t>(std::string("tokenizer.ggml.") + name + "_token_id");
    return value == nullptr ? -1 : static_cast<int>(*value);
  };
  EXPECT_EQ(id("bos"), 0);
  EXPECT_EQ(id("eos"), 2) << "the tokenizer's own, not the first of the list";
  EXPECT_EQ(id("eot"), 1) << "llama.cpp stops at this one, too";
  EXPECT_EQ(id("eom"), 3);
  EXPECT_EQ(id("padding"), 4) << "only the tokenizer names it";
  EXPECT_EQ(id("unknown"), -1);
  ASSERT_NE(m.get<float>("general.sampling.temp"), nullptr);
  EXPECT_EQ(*m.get<float>("general.sampling.temp"), 0.6f);
  EXPECT_EQ(*m.get<std::int32_t>("general.sampling.top_k"), 20);
  EXPECT_EQ(*m.get<std::string>("tokenizer.chat_template"), kInstruct.at("chat_template.jinja"));
}

TEST(TokenizerSettings, ThroughGgufAndBack) {
  const test::ScratchFolder folder;
  const TokenizerSettings before = in_folder(folder, kInstruct);
  const TokenizerSettings after = TokenizerSettings::of_gguf(
      before.added_to(tokens_of({"<s>", "<end>", "<eot>", "<eom>", "<pad>"})));
  EXPECT_EQ(after.chat_template(), before.chat_template());
  EXPECT_EQ(after.ends(), before.ends());
  EXPECT_EQ(parsed(after, "config.json")["eos_token_id"], (Json{1, 3, 2}));
  Json generation = parsed(before, "generation_config.json");
  generation["pad_token_id"] = 4;  // from the tokenizer
  EXPECT_EQ(Json::parse(parsed(after, "generation_config.json").dump()), generation);
  const Json tokenizer = parsed(after, "tokenizer_config.json");
  for (const char* kept : {"bos_token", "eos_token", "pad_token", "padding_side", "add_bos_token"})
    EXPECT_EQ(tokenizer[kept], parsed(before, "tokenizer_config.json")[kept]) << kept;
}

// A file of llama.cpp itself, without keys of this program.
TEST(TokenizerSettings, OfAForeignGguf) {
  GgufMetadata m = tokens_of({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  m.add("tokenizer.ggml.bos_token_id", std::uint32_t{1});
  m.add("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  m.add("tokenizer.ggml.eot_token_id", std::uint32_t{0});
  m.add("general.sampling.temp", 0.7f);
  m.add("tokenizer.chat_template", std::string("{{ 1 }}"));
  m.add("tokenizer.chat_template.tool_use", std::string("{{ 2 }}"));
  const TokenizerSettings settings = TokenizerSettings::of_gguf(m);
  EXPECT_EQ(parsed(settings, "config.json"), (Json{{"bos_token_id", 1}, {"eos_token_id", 2}}));
  const Json generation = parsed(settings, "generation_config.json");
  EXPECT_EQ(generation["eos_token_id"], (Json{2, 0}));
  EXPECT_EQ(generation["bos_token_id"], 1);
  EXPECT_EQ(generation["temperature"], 0.7);
  EXPECT_EQ(generation["do_sample"], true);
  const Json tokenizer = parsed(settings, "tokenizer_config.json");
  EXPECT_EQ(tokenizer["eos_token"], "<|im_end|>");
  EXPECT_EQ(tokenizer["bos_token"], "<|im_start|>");
  EXPECT_EQ(settings.chat_template(), "{{ 1 }}");
  EXPECT_EQ(settings.other_templates(), std::vector<std::string>{"tool_use"});
  EXPECT_TRUE(TokenizerSettings::of_gguf({}).empty());
}

TEST(TokenizerSettings, TheEndOfATurnComesFirst) {
  const test::ScratchFolder folder;
  TokenizerSettings settings = in_folder(
      folder, {{"config.json", R"({"eos_token_id": 0})"},
               {"generation_config.json", R"({"eos_token_id": 0, "top_p": 0.5})"},
               {"tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})"},
               {"special_tokens_map.json", R"({"eos_token": {"content": "<|endoftext|>"}})"}});
  settings.end_turns_with({2, "<|im_end|>"});
  EXPECT_EQ(settings.ends(), (std::vector<std::int64_t>{2, 0}));
  EXPECT_EQ(settings.ids_json(), R"({"eos_token_id":2})");
  EXPECT_EQ(parsed(settings, "generation_config.json"),
            (Json{{"eos_token_id", {2, 0}}, {"top_p", 0.5}}));
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"})
    EXPECT_EQ(parsed(settings, name)["eos_token"], "<|im_end|>") << name;
  // The end of turns that is there already stays as it is, to the byte.
  const auto files = settings.files();
  settings.end_turns_with({2, "<|im_end|>"});
  EXPECT_EQ(settings.files(), files);
}

TEST(TokenizerSettings, ADamagedFileIsNamed) {
  const test::ScratchFolder folder;
  write_text_file(folder.path() + "/generation_config.json", "{\"eos_token_id\": [1,}");
  try {
    TokenizerSettings::of_folder(folder.path());
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("generation_config.json"), std::string::npos);
  }
}

// `tokenizers` gives tokens of added_tokens that model.vocab does not have new ids behind it.
TEST(GgufTokenizer, ControlTokensAreEntriesOfTheVocabulary) {
  const std::string golden = test::golden_tokenizer("smollm2");
  const Vocabulary before = Vocabulary::from_json(golden, "here");
  const std::string json =
      vocabulary_of_gguf(tokenizer_of_vocabulary(golden, before.size()), "a.gguf");
  const nlohmann::json file = read_json(json, "a.gguf", {.keys = kAnyNumberOfKeys});
  ASSERT_FALSE(file["added_tokens"].empty());
  for (const auto& token : file["added_tokens"])
    EXPECT_EQ(file["model"]["vocab"].value(token["content"].get<std::string>(), -1), token["id"]);
  EXPECT_TRUE(same_tokens(before, Vocabulary::from_json(json, "a.gguf")));
}

TEST(GgufTokenizer, TokensAroundATextAreKept) {
  GgufMetadata m = tokenizer_of_vocabulary(test::tiny_tokenizer(), 300);
  GgufMetadata made;
  for (const auto& [key, value] : m.pairs())
    if (!key.ends_with("bos_token_id") && !key.ends_with("eos_token_id") &&
        !key.ends_with("add_bos_token"))
      made.add(key, value);
  made.add("tokenizer.ggml.bos_token_id", std::uint32_t{7});
  made.add("tokenizer.ggml.eos_token_id", std::uint32_t{8});
  made.add("tokenizer.ggml.add_bos_token", true);
  made.add("tokenizer.ggml.add_eos_token", true);
  const std::string json = vocabulary_of_gguf(made, "a.gguf");
  const nlohmann::json file = read_json(json, "a.gguf", {.keys = kAnyNumberOfKeys});
  EXPECT_EQ(file["post_processor"]["single"].size(), 3u);
  const GgufMetadata again = tokenizer_of_vocabulary(json, 300);
  for (const char* key : {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"}) {
    ASSERT_NE(again.get<bool>(key), nullptr) << key;
    EXPECT_TRUE(*again.get<bool>(key)) << key;
  }
}

TEST(ExportedTokenizer, FilesOfAnotherVocabularyAreLeftOutByName) {
  const test::ScratchFolder folder;
  write_text_file(folder.path() + "/tokenizer.json", test::tiny_tokenizer());
  write_text_file(folder.path() + "/config.json", R"({"eos_token_id": 5})");
  const auto of = [&](const std::string& vocabulary) {
    return exported_tokenizer(
        {.folder = folder.path(), .vocabulary = vocabulary, .model_ids = 400});
  };
  const ExportedTokenizer same = of(test::tiny_tokenizer());
  EXPECT_EQ(same.folder, folder.path());
  EXPECT_EQ(same.settings.ends(), std::vector<std::int64_t>{5});
  EXPECT_TRUE(same.notes.empty());
  const ExportedTokenizer other = of(Vocabulary::bytes().to_json());
  EXPECT_EQ(other.folder, "");
  ASSERT_EQ(other.notes.size(), 1u);
  EXPECT_NE(other.notes[0].find("trained with another vocabulary"), std::string::npos);
}

}  // namespace
}  // namespace choir
