// Tests of the log line and metrics.jsonl.
#include "src/train/loop/metrics_log.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/train/loop/run_log.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

StepMetrics sample() {
  return {.step = 10,
          .result = {.loss = 3.1540000000000001, .grad_norm = 1.0 / 3, .learning_rate = 6e-4},
          .dt = 0.5,
          .forward = 0.1,
          .backward = 0.3,
          .data = 0.01,
          .comm = 0.02,
          .optimizer = 0.03,
          .other = 0.04,
          .sequences = 12,
          .tokens = 768,
          .mfu = 0.4321,
          .memory = 123456789,
          .allocated = 23456789,
          .train_loss = {},
          .val_loss = {}};
}

TEST(MetricsLine, NamesAndOrderOfTheTutorial) {
  StepMetrics m = sample();
  EXPECT_EQ(
      format_line(m, 2),
      "step=10 loss=3.1540 dt=0.5000 dtf=0.1000 dtb=0.3000 sps=24.00 sps_per_gpu=12.00 tps=1536 "
      "tps_per_gpu=768 mfu=43.21 lr=0.0006");
  m.train_loss = 3.5;
  m.val_loss = 3.25;
  m.result.updated = false;
  EXPECT_TRUE(
      format_line(m, 2).ends_with("mfu=43.21 lr=0.0006 train_loss=3.5000 val_loss=3.2500 skipped"));
  m.scaled = true;
  m.result.loss_scale = 33554432;
  EXPECT_TRUE(format_line(m, 2).ends_with(
      "mfu=43.21 lr=0.0006 loss_scale=33554432 train_loss=3.5000 val_loss=3.2500 skipped"));
}

TEST(MetricsLine, TermsOfTheLoss) {
  StepMetrics m = sample();
  m.terms = {{"text_loss", 2.5}, {"ctc_loss", 1.0 / 3}};
  EXPECT_TRUE(format_line(m, 2).ends_with("mfu=43.21 lr=0.0006 text_loss=2.5000 ctc_loss=0.3333"));
  EXPECT_EQ(nlohmann::json::parse(to_json(m, 2)).at("ctc_loss").get<double>(), 1.0 / 3);
}

TEST(MetricsLine, EnergyIsThereOnlyIfItIsKnown) {
  StepMetrics m = sample();
  EXPECT_EQ(format_line(m, 2).find("energy"), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(to_json(m, 2)).contains("energy_j"));
  m.energy = 38.4;
  m.total_energy = 1000.5;
  EXPECT_TRUE(format_line(m, 2).ends_with("mfu=43.21 lr=0.0006 energy_j=38.4 j_per_token=0.05"));
  const auto json = nlohmann::json::parse(to_json(m, 2));
  EXPECT_EQ(json.at("energy_j").get<double>(), 38.4);
  EXPECT_EQ(json.at("j_per_token").get<double>(), 38.4 / 768);
  EXPECT_EQ(json.at("energy_total_j").get<double>(), 1000.5);
}

TEST(MetricsLine, FitsATerminalWithoutItsLeastImportantFields) {
  StepMetrics m = sample();
  m.terms = {{"text_loss", 2.5}};
  m.train_loss = 3.5;
  m.val_loss = 3.25;
  const std::string whole = format_line(m, 2);
  EXPECT_EQ(fitting_line(whole, whole.size()), whole);
  EXPECT_EQ(fitting_line(whole, whole.size() - 1).find("text_loss"), std::string::npos);
  EXPECT_EQ(fitting_line(whole, 72),
            "step=10 loss=3.1540 tps=1536 mfu=43.21 train_loss=3.5000 val_loss=3.2500");
  EXPECT_EQ(fitting_line(whole, 40), "step=10 loss=3.1540 val_loss=3.2500");
  EXPECT_EQ(fitting_line(whole, 0), "step=10 loss=3.1540");
  for (std::size_t columns = 20; columns < whole.size(); ++columns)
    EXPECT_LE(fitting_line(whole, columns).size(), columns);
}

TEST(MetricsLine, CompactIsThatOfNanoGpt) {
  StepMetrics m = sample();
  EXPECT_EQ(compact_lines(m), "iter 10: loss 3.1540, time 500.00ms, mfu 43.21%");
  m.train_loss = 1.964;
  m.val_loss = 2.0123;
  EXPECT_EQ(compact_lines(m),
            "step 10: train loss 1.9640, val loss 2.0123\n"
            "iter 10: loss 3.1540, time 500.00ms, mfu 43.21%");
  m.validations = {{.loss = 2.0123, .metrics = {{"wer", 0.25}}}};
  m.result.updated = false;
  EXPECT_EQ(compact_lines(m),
            "step 10: train loss 1.9640, val loss 2.0123, val wer 0.2500\n"
            "iter 10: loss 3.1540, time 500.00ms, mfu 43.21%, skipped");
  StepMetrics speech = sample();
  speech.audio_seconds = 60;
  EXPECT_EQ(compact_lines(speech),
            "iter 10: loss 3.1540, time 500.00ms, mfu 43.21%, 120.0 x real time");
}

TEST(TimeLeft, SlowFirstStepsAndStallsDoNotCount) {
  TimeLeft left;
  for (int step = 0; step < 5; ++step) left.add_step(10);
  for (int step = 0; step < 9; ++step) left.add_step(step == 4 ? 30 : 0.5);
  EXPECT_EQ(left.of(100, 2, 7), 0) << "too few steps";
  left.add_step(0.5);
  EXPECT_DOUBLE_EQ(left.of_step(), 0.5);
  EXPECT_DOUBLE_EQ(left.of(100, 2, 7), 100 * 0.5 + 2 * 7);
  for (int step = 0; step < 100; ++step) left.add_step(2);  // the machine has become slower
  EXPECT_DOUBLE_EQ(left.of(100, 0, 7), 200);
}

TEST(MetricsJson, FullPrecision) {
  StepMetrics m = sample();
  auto json = nlohmann::json::parse(to_json(m, 2));
  EXPECT_EQ(json.at("step"), 10);
  EXPECT_EQ(json.at("loss").get<double>(), m.result.loss);
  EXPECT_EQ(json.at("grad_norm").get<double>(), 1.0 / 3);
  EXPECT_EQ(json.at("lr").get<double>(), 6e-4);
  EXPECT_EQ(json.at("tps_per_gpu").get<double>(), 768);
  EXPECT_EQ(json.at("mem"), 123456789);
  EXPECT_EQ(json.at("allocated"), 23456789);
  EXPECT_FALSE(json.contains("val_loss") || json.contains("loss_scale"));
  double phases = 0;
  for (const char* key : {"dtf", "dtb", "data", "comm", "optimizer", "other"})
    phases += json.at(key).get<double>();
  EXPECT_NEAR(phases, json.at("dt").get<double>(), 1e-15);
  m.result.loss = std::numeric_limits<double>::quiet_NaN();
  m.val_loss = 2.5;
  json = nlohmann::json::parse(to_json(m, 2));
  EXPECT_TRUE(json.at("loss").is_null());
  m.scaled = true;
  m.result.loss_scale = 4096;
  EXPECT_EQ(nlohmann::json::parse(to_json(m, 2)).at("loss_scale"), 4096);
  EXPECT_EQ(json.at("val_loss"), 2.5);
}

TEST(MetricsLegend, ExplainsEveryKeyOfTheLine) {
  const std::string legend = metrics_legend("peak");
  for (const char* key : {"step", "loss", "dt", "dtf", "dtb", "sps", "tps", "_per_gpu", "mfu", "lr",
                          "loss_scale", "train_loss", "val_loss"})
    EXPECT_NE(legend.find(key), std::string::npos) << key;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(MetricsFile, ResumeDropsWhatWillBeRepeated) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  {
    MetricsFile file(path, 0);
    for (const int step : {5, 10, 15})
      EXPECT_TRUE(file.write("{\"step\":" + std::to_string(step) + "}"));
  }
  std::ofstream(path, std::ios::app) << "{\"step\":20,\"lo";  // killed while writing
  {
    MetricsFile file(path, 10);
    EXPECT_TRUE(file.write("{\"step\":15,\"again\":1}"));
    EXPECT_EQ(lines_of(path).size(), 3u) << "flushed line by line";
  }
  EXPECT_EQ(lines_of(path), (std::vector<std::string>{"{\"step\":5}", "{\"step\":10}",
                                                      "{\"step\":15,\"again\":1}"}));
  MetricsFile fresh(path, 0);
  EXPECT_TRUE(lines_of(path).empty());
}

TEST(MetricsFile, FullDiskIsReportedNotThrown) {
  const test::TemporaryDirectory folder;
  EXPECT_THROW(MetricsFile("/proc/nowhere/metrics.jsonl", 0), StorageError);
  MetricsFile file(folder.path() + "/metrics.jsonl", 0);
  // The size limit of a process has the same effect as a full disk: write fails.
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{4096, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  const bool wrote = file.write("{\"step\":1}"), more = file.write(std::string(8192, ' '));
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  EXPECT_TRUE(wrote);
  EXPECT_FALSE(more);
  EXPECT_TRUE(file.write("{\"step\":2}")) << "there is room again";
  MetricsFile none;
  EXPECT_TRUE(none.write("{}")) << "ranks without a file have nothing to say";
}

// Lines of one name stand together, and every sign of a label that has a meaning is escaped.
TEST(PrometheusFile, HasTheNumbersOfTheLastLine) {
  StepMetrics m = sample();
  m.result.loss = std::numeric_limits<double>::quiet_NaN();
  m.val_loss = 2.5;
  m.validations = {{.name = "", .loss = 2.5}, {.name = "far", .loss = 4}};
  const std::string text = prometheus_text(m, "a \"b\"\\", 17);
  const std::string label = R"({run="a \"b\"\\"})";
  EXPECT_NE(text.find("# TYPE choir_train_loss gauge\nchoir_train_loss" + label + " NaN\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("choir_step" + label + " 10\n"), std::string::npos);
  EXPECT_NE(text.find("choir_val_loss" + label + " 2.5\nchoir_val_loss"), std::string::npos);
  EXPECT_NE(text.find(R"(,set="far"} 4)"), std::string::npos);
}

TEST(PrometheusFile, IsReplacedWhole) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/run.prom";
  PrometheusFile file(path, "a");
  EXPECT_FALSE(std::filesystem::exists(path)) << "there is no number yet";
  ASSERT_TRUE(file.write(sample()));
  StepMetrics later = sample();
  later.step = 20;
  ASSERT_TRUE(file.write(later));
  const auto lines = lines_of(path);
  EXPECT_EQ(std::ranges::count(lines, "choir_step{run=\"a\"} 20"), 1);
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
  EXPECT_THROW(PrometheusFile("/proc/nowhere/a.prom", "a"), StorageError);
  std::filesystem::remove_all(folder.path());
  EXPECT_FALSE(file.write(later)) << "a folder that vanished does not end training";
  EXPECT_TRUE(PrometheusFile().write(later)) << "ranks without a file have nothing to say";
}

}  // namespace
}  // namespace choir
