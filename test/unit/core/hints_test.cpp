// Tests of the advice on names that somebody mistyped or knows from another program.
#include "src/core/hints.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

class MissingFiles : public ::testing::Test {
 protected:
  MissingFiles() {
    fs::create_directories(folder_.path() + "/data/books");
    for (const char* name : {"input.txt", "other.txt", "a.wav"})
      std::ofstream(folder_.path() + "/data/" + name) << "x";
  }
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  const test::TemporaryDirectory folder_;
};

TEST_F(MissingFiles, NearestNameAlsoOfAFolder) {
  EXPECT_EQ(advice_on_missing(at("data/inptu.txt")),
            "did you mean '" + at("data/input.txt") + "'?");
  EXPECT_EQ(advice_on_missing(at("dta/input.txt")), "did you mean '" + at("data/input.txt") + "'?");
  std::ofstream(at("data/bom.json")) << "x";
  EXPECT_EQ(advice_on_missing(at("data/nope.json")), "'" + at("data") + "' has bom.json")
      << "the endings alone are near";
  EXPECT_EQ(advice_on_missing(at("data/books/")), "");
  EXPECT_EQ(advice_on_missing(at("data/input.txt")), "");
  EXPECT_EQ(advice_on_missing(""), "");
}

TEST_F(MissingFiles, NeighboursOfTheSameKindOrTheMissingFolder) {
  EXPECT_EQ(advice_on_missing(at("data/zzzzzzzz.txt")),
            "'" + at("data") + "' has input.txt, other.txt");
  EXPECT_EQ(advice_on_missing(at("qqqqq/zzz.txt")), "there is no folder '" + at("qqqqq") + "'");
  EXPECT_EQ(advice_on_missing(at("data/zzzzzzzz.flac")), "");
  EXPECT_EQ(advice_on_path(at("data/zzzzzzzz.flac"), "otherwise"), "otherwise");
  EXPECT_EQ(advice_on_path(at("data/b.wav"), "otherwise"),
            "did you mean '" + at("data/a.wav") + "'? otherwise");
}

TEST(HubNames, AreToldFromPaths) {
  for (const char* name : {"gpt2", "meta-llama/Llama-3.2-1B", "HuggingFaceTB/SmolLM2-135M"})
    EXPECT_NE(advice_on_hub_name(name).find("hf download " + std::string(name)), std::string::npos)
        << name;
  EXPECT_NE(advice_on_hub_name("cl100k_base").find("tiktoken"), std::string::npos);
  for (const char* path : {"data/a.txt", "./gpt2", "/gpt2/model", "runs/a/b", "char", "books.json",
                           "org/tokenizer.json", "runs/quickstart", ""})
    EXPECT_EQ(advice_on_hub_name(path), "") << path;
}

TEST(Options, NamesOfOtherPrograms) {
  const std::vector<std::string> options{"--prompt", "--prompts", "--samples",     "--tokens",
                                         "--top-k",  "--top-p",   "--temperature", "--seed"};
  EXPECT_EQ(advice_on_option("--start=ROMEO:", options).text,
            "--start of nanoGPT is --prompt here: --prompt ROMEO:");
  EXPECT_EQ(advice_on_option("--num_samples", options).text,
            "--num_samples of nanoGPT is --samples here: --samples");
  EXPECT_EQ(advice_on_option("--max_new_tokens=5", options).text,
            "--max_new_tokens of nanoGPT is --tokens here: --tokens 5");
  EXPECT_EQ(advice_on_option("--num-return-sequences", options).text,
            "--num-return-sequences of Hugging Face is --samples here: --samples");
  EXPECT_NE(advice_on_option("--num_beams=4", options).text.find("no beam search"),
            std::string::npos);
  EXPECT_EQ(advice_on_option("--beam_size=4", {"--beam"}).text,
            "--beam_size of NeMo is --beam here: --beam 4");
}

TEST(Options, OtherSpellingsAndMisspellings) {
  const std::vector<std::string> options{"--top-k", "--temperature", "--help"};
  EXPECT_EQ(advice_on_option("--top_k=3", options).text, "did you mean --top-k 3?");
  EXPECT_EQ(advice_on_option("--temprature", options).text, "did you mean --temperature?");
  EXPECT_EQ(advice_on_option("--start=x", options).text, "");  // this command has no --prompt
  EXPECT_EQ(advice_on_option("word", options).text, "");
  EXPECT_EQ(advice_on_option("--", options).text, "");
}

}  // namespace
}  // namespace choir
