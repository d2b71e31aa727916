// The list of runs below a folder.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "choir/core/error.hpp"
#include "src/report/run_list.hpp"

namespace choir::report {
namespace {

namespace fs = std::filesystem;

class RunList : public ::testing::Test {
 protected:
  RunList() : folder_(fs::temp_directory_path() / ("choir_runs_" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
  }
  ~RunList() override { fs::remove_all(folder_); }
  void put(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  fs::path folder_;
};

constexpr const char* kDeck = R"({"model": {"type": "gpt"}, "train": {"max_steps": 9},
  "decks": ["base.json", "inputs/a.json"], "sources": {}})";

TEST_F(RunList, FindsRunsAtEveryDepthAndNothingElse) {
  put("b/deck.json", kDeck), put("b/log.txt", "");
  put("b/checkpoints/deck.json", kDeck), put("b/checkpoints/log.txt", "");
  put("sweep/a/deck.json", kDeck), put("sweep/a/metrics.jsonl", "");
  put("decks/deck.json", kDeck);
  const std::string root = folder_.string();
  EXPECT_EQ(run_folders(root), (std::vector<std::string>{root + "/b", root + "/sweep/a"}));
  EXPECT_EQ(run_folders(root + "/b/"), (std::vector<std::string>{root + "/b"}));
  EXPECT_THROW(run_folders(root + "/decks"), DataError);
  EXPECT_THROW(run_folders(root + "/none"), DataError);
}

TEST_F(RunList, TellsTheNewestOfARun) {
  put("a/deck.json", kDeck);
  put("a/log.txt", "");
  put("a/metrics.jsonl",
      "{\"step\":1,\"loss\":3.5}\n{\"step\":2,\"loss\":3.25,\"val_loss\":3.0}\n"
      "{\"step\":3,\"loss\":2.75}\n");
  put("imported/deck.json", kDeck);
  fs::create_directories(folder_ / "imported/checkpoints");
  put("mean/deck.json", kDeck);
  put("mean/checkpoints/step_00000000/manifest.json",
      R"({"manifest": {"layout": "average of 2 checkpoints", "step": 0}})");
  std::vector<ListedRun> runs;
  for (const std::string& path : run_folders(folder_.string()))
    runs.push_back(listed(read_run(path)));
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].step, 3);
  EXPECT_EQ(runs[0].max_steps, 9);
  EXPECT_EQ(runs[0].loss, 2.75);
  EXPECT_EQ(runs[0].val_loss, 3.0);
  EXPECT_EQ(runs[0].model, "gpt");
  EXPECT_EQ(runs[0].deck, "inputs/a.json");
  EXPECT_EQ(runs[1].state, "imported");
  EXPECT_EQ(runs[2].state, "averaged");
  EXPECT_TRUE(std::isnan(runs[1].loss));
  const std::string table = run_table(runs);
  EXPECT_NE(table.find("3/9  2.7500  3.0000 at 2  gpt"), std::string::npos) << table;
  const std::string lines = run_lines(runs);
  EXPECT_NE(lines.find("\"loss\":2.75,\"val_loss\":3.0"), std::string::npos) << lines;
  EXPECT_NE(lines.find("\"loss_step\":3,\"val_loss_step\":2"), std::string::npos) << lines;
  EXPECT_NE(lines.find("\"loss\":null"), std::string::npos) << lines;
}

TEST_F(RunList, ShowsTheMainScore) {
  put("a/deck.json", kDeck);
  put("a/log.txt", "");
  put("a/metrics.jsonl",
      "{\"step\":1,\"loss\":3.5,\"val_wer\":0.5}\n{\"step\":2,\"loss\":3,\"val_wer\":0.0776}\n");
  const ListedRun run = listed(read_run((folder_ / "a").string()));
  EXPECT_EQ(run.score, "wer");
  EXPECT_EQ(run.score_value, 0.0776);
  ListedRun other;
  other.path = "b";
  const std::string table = run_table({run, other});
  EXPECT_NE(table.find("  WER 7.76 %  gpt"), std::string::npos) << table;
  EXPECT_NE(table.find("val_loss       score  model"), std::string::npos) << table;
  EXPECT_NE(run_lines({run}).find("\"score\":\"wer\",\"score_value\":0.0776"), std::string::npos);
}

TEST_F(RunList, ARunAddsItselfToTheIndexOfItsFolder) {
  put("a/deck.json", kDeck);
  put("a/log.txt", "");
  put("a/metrics.jsonl", R"({"event":"start","step":0,"provenance":{"revision":"abc"}})"
                         "\n{\"step\":1,\"loss\":3.5}\n");
  put("b/deck.json", kDeck);
  put("b/log.txt", "");
  const std::string run = (folder_ / "a").string(), index = (folder_ / "index.jsonl").string();
  EXPECT_EQ(add_to_index(run + "/"), "");
  EXPECT_EQ(add_to_index(run), "");
  EXPECT_EQ(add_to_index((folder_ / "b").string()), "") << "a run without a step has no line";
  std::ifstream file(index);
  std::string first, second, third;
  std::getline(file, first), std::getline(file, second);
  EXPECT_FALSE(std::getline(file, third));
  EXPECT_EQ(second, run_lines({listed(read_run(run))}));
  EXPECT_NE(second.find(R"("revision":"abc")"), std::string::npos) << second;
  EXPECT_NE(second.find("\"deck_crc32c\":\"" + read_run(run).deck_crc32c + "\""),
            std::string::npos);
  EXPECT_EQ(index_of_runs("a"), "") << "the folder of the program is no folder of runs";
  fs::remove(index);
  fs::create_directory(index);
  EXPECT_NE(add_to_index(run), "");
}

}  // namespace
}  // namespace choir::report
