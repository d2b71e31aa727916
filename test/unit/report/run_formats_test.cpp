// Tests of a run of two jobs in the formats of other programs: Weights & Biases (against the bytes
// that its own package writes), MLPerf's lines, and the row for dashboards.
#include "src/report/run_formats.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <sstream>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"

namespace choir::report {
namespace {

ReportedRun two_jobs() {
  ReportedRun run;
  run.name = "tiny";
  run.fate = Fate::finished;
  run.deck["model.n_layer"] = {"2", "a.json:1"};
  run.deck["run.name"] = {"\"tiny\"", "a.json:2"};
  run.start.ranks.push_back({.host = "node1"});
  run.starts = {{0, "2026-11-24 12:00:00"}, {5, "2026-11-24 12:01:40"}};
  run.curves["loss"] = {{5, 10}, {3.25, NAN}};
  run.curves["dt"] = {{5, 10}, {0.5, 1}};
  return run;
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

class RunFormatsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* zone = std::getenv("TZ")) before_ = zone;
    setenv("TZ", "UTC", 1);
    tzset();
  }
  void TearDown() override {
    before_.empty() ? unsetenv("TZ") : setenv("TZ", before_.c_str(), 1);
    tzset();
  }
  std::string before_;
};

// wandb 0.19.11: wandb_internal_pb2 and DataStore. Times are those of the jobs' starts and of their
// steps: 5 of 0.5 s, and 100 s after the first start 5 of 1 s.
constexpr const char* kWandbBytes =
    "3a572642e1be0073994b4e1600010801aa01110a0f0a0563686f69721206302e37302e302eaff4ed67000108"
    "028a01620a0879353072757437691a0563686f697222320a170a056d6f64656c82010d7b226e5f6c61796572"
    "223a327d0a170a0372756e82010f7b226e616d65223a2274696e79227d3a05747261696e420474696e796a05"
    "6e6f6465318a010608c0f895d806e5f1a11c5f00010803125b0a0b12055f73746570820101350a1012085f72"
    "756e74696d65820103322e350a1b120a5f74696d657374616d7082010c313739353532313630322e350a0a12"
    "026474820103302e350a0d12046c6f7373820104332e323512020805dd9134965d0001080412590a0c12055f"
    "7374657082010231300a1012085f72756e74696d658201033130350a19120a5f74696d657374616d7082010a"
    "313739353532313730350a0812026474820101310a0e12046c6f7373820105224e614e221202080a4bda5852"
    "1e000108051a1a0a080a026474820101310a0e0a046c6f7373820105224e614e22c43b098805000108069201"
    "00";

TEST_F(RunFormatsTest, HasTheBytesOfItsOwnPackage) {
  const WandbRun made = wandb_run(two_jobs());
  EXPECT_EQ(hex(made.bytes), kWandbBytes);
  EXPECT_EQ(made.folder, "offline-run-20261124_120000-y50rut7i");
  EXPECT_EQ(made.file, "run-y50rut7i.wandb");
}

// The tags are those that log.tensorboard writes; the framing is tested where it is written.
TEST_F(RunFormatsTest, HasEventsForTensorboard) {
  const std::string bytes = tensorboard_events(two_jobs());
  EXPECT_NE(bytes.find("brain.Event:2"), std::string::npos);
  for (const char* tag : {"train/loss", "speed/step_seconds"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
  EXPECT_EQ(bytes.find("train/learning_rate"), std::string::npos) << "not in the record";
}

// The output of a longer chain of jobs replaces the run that was written before.
TEST_F(RunFormatsTest, KeepsItsName) {
  ReportedRun longer = two_jobs();
  longer.starts.push_back({10, "2026-11-25 00:00:00"});
  longer.curves["loss"].x.push_back(11);
  longer.curves["loss"].y.push_back(2);
  EXPECT_EQ(wandb_run(longer).folder, wandb_run(two_jobs()).folder);
  ReportedRun other = two_jobs();
  other.starts.front().time = "2026-11-24 12:00:01";
  EXPECT_NE(wandb_run(other).file, wandb_run(two_jobs()).file);
}

// Records cross the borders of blocks, where a header must fit: every block begins with a part of a
// record.
TEST_F(RunFormatsTest, CutsRecordsAtBlocks) {
  ReportedRun run = two_jobs();
  for (int step = 11; step < 3000; ++step) {
    run.curves["loss"].x.push_back(step);
    run.curves["loss"].y.push_back(1.0 / step);
  }
  const std::string bytes = wandb_run(run).bytes;
  ASSERT_GT(bytes.size(), 4u * 32768);
  std::size_t at = 7, records = 0;
  bool inside = false;
  while (at < bytes.size()) {
    const std::size_t left = 32768 - at % 32768;
    if (left < 7) {
      for (std::size_t i = 0; i < left; ++i) ASSERT_EQ(bytes[at + i], 0);
      at += left;
      continue;
    }
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[at + i]); };
    const std::size_t size = byte(4) + 256u * byte(5);
    const int type = byte(6);
    ASSERT_TRUE(type >= 1 && type <= 4);
    ASSERT_EQ(inside, type == 3 || type == 4);
    inside = type == 2 || type == 3;
    records += type == 1 || type == 4;
    ASSERT_LE(7 + size, left);
    at += 7 + size;
  }
  EXPECT_FALSE(inside);
  EXPECT_EQ(records, 2u + 2 + 2989 + 2);
}

// Without start records the time of the run is unknown.
TEST_F(RunFormatsTest, WithoutTimes) {
  ReportedRun run = two_jobs();
  run.starts.clear();
  EXPECT_EQ(wandb_run(run).bytes.find("_timestamp"), std::string::npos);
}

ReportedRun with_evaluations() {
  ReportedRun run = two_jobs();
  run.deck["train.precision"] = {"\"bf16-mixed\"", "default"};
  run.deck["run.seed"] = {"1337", "default"};
  run.deck["model.lora.rank"] = {"0", "default"};
  run.curves["sps"] = {{5, 10}, {8, 4}};
  run.curves["tps"] = {{5, 10}, {80, 40}};
  run.curves["val_loss"] = {{5, 10}, {2.5, 0.75}};
  run.curves["energy_j"] = {{5, 10}, {30, 60}};
  run.deck_crc32c = "0badcafe";
  return run;
}

/// The times in seconds and the values of the lines with this key.
std::vector<std::pair<double, std::string>> values_of(const std::string& text,
                                                      const std::string& key) {
  std::vector<std::pair<double, std::string>> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.starts_with(":::MLLOG {")) << line;
    const nlohmann::json event = parsed_json(line.substr(9));
    if (event["key"] != key) continue;
    found.emplace_back(event["time_ms"].get<double>() / 1e3, dumped(event["value"]));
  }
  return found;
}

// Four samples a step: 8/s x 0.5 s and 4/s x 1 s. The second job began 100 s after the first.
TEST_F(RunFormatsTest, MllogHasTheTimesAndSamplesOfEvaluations) {
  const std::string text = mllog_lines(with_evaluations(), {{"submission_org", "a centre"}});
  const auto accuracy = values_of(text, "eval_accuracy");
  ASSERT_EQ(accuracy.size(), 2u);
  EXPECT_EQ(accuracy[0].second, "2.5");
  EXPECT_EQ(accuracy[1].second, "0.75");
  EXPECT_DOUBLE_EQ(accuracy[1].first - accuracy[0].first, 102.5);
  EXPECT_EQ(values_of(text, "global_batch_size")[0].second, "4");
  EXPECT_EQ(values_of(text, "train_samples")[0].second, "40");
  EXPECT_EQ(values_of(text, "submission_org")[0].second, "\"a centre\"");
  EXPECT_EQ(values_of(text, "seed")[0].second, "1337");
  EXPECT_EQ(values_of(text, "lowest_numerical_precision_in_linear")[0].second, "\"bfloat16\"");
  EXPECT_NE(text.find(R"("key":"run_stop","value":null,"metadata":{"status":"success")"),
            std::string::npos);
}

// The deck's 0 means "derived", and the record has the derived number. A number that nothing
// recorded is left out, because 0 would be a claim.
TEST_F(RunFormatsTest, MllogClaimsOnlyTheRecord) {
  ReportedRun run = with_evaluations();
  run.deck["train.grad_accum"] = {"6", "derived"};
  run.deck["train.micro_batches"] = {"0", "default"};
  const std::string text = mllog_lines(run, {});
  EXPECT_EQ(values_of(text, "gradient_accumulation_steps")[0].second, "6");
  EXPECT_TRUE(values_of(text, "eval_samples").empty());
  EXPECT_EQ(mllog_notes(run, {}).size(), 2u);
  EXPECT_NE(mllog_notes(run, {})[0].find("llama31_8b is an assumption"), std::string::npos);
  EXPECT_EQ(values_of(mllog_lines(run, {{"eval_samples", "96"}}), "eval_samples")[0].second, "96");
  EXPECT_TRUE(mllog_notes(run, {{"submission_benchmark", "own"}, {"eval_samples", "96"}}).empty());
}

TEST_F(RunFormatsTest, MllogNeedsEvaluations) {
  EXPECT_THROW(mllog_lines(two_jobs(), {}), DataError);
  ReportedRun failed = with_evaluations();
  failed.fate = Fate::failed;
  EXPECT_NE(mllog_lines(failed, {}).find(R"("status":"aborted")"), std::string::npos);
}

TEST_F(RunFormatsTest, TheRowHasMediansAndNullForTheUnknown) {
  const nlohmann::json row = parsed_json(scale_row(with_evaluations()));
  EXPECT_EQ(row["efficiency"]["step_seconds"], 1.0);
  EXPECT_EQ(row["efficiency"]["tokens_per_second"], 40.0);
  EXPECT_TRUE(row["efficiency"]["mfu_percent"].is_null());
  EXPECT_EQ(row["energy"]["mean_watts"], 60.0);
  EXPECT_TRUE(row["energy"]["joules_total"].is_null());
  EXPECT_EQ(row["result"]["val_loss"], 0.75);
  EXPECT_EQ(row["scale"]["ranks"], 1);
  EXPECT_EQ(row["scale"].count("threads"), 0u) << "of all ranks, or of one";
  EXPECT_TRUE(row["scale"]["threads_per_rank"].is_number_integer());
  EXPECT_TRUE(row["result"]["steps"].is_number_integer());
  EXPECT_TRUE(row["model"]["parameters"].is_number_integer());
  EXPECT_EQ(row["provenance"]["deck_crc32c"], "0badcafe");
  EXPECT_THROW(scale_row({}), DataError);
}

}  // namespace
}  // namespace choir::report
