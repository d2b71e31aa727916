#include "src/lab/tune/tune.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "choir/run/training_data.hpp"
#include "src/device/cpu_device.hpp"
#include "test/support/families.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

/// A machine, described by files.
class FakeSystem {
 public:
  FakeSystem() { fs::create_directories(root_); }
  ~FakeSystem() { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_ = (fs::path(::testing::TempDir()) / "choir_step_probe_system").string();
};

// A larger micro-batch that takes more time per sequence is not chosen.
TEST(Probes, TheFastestPerSequenceIsChosen) {
  const auto tried = [](std::int64_t micro, double seconds, std::int64_t count, bool ran = true) {
    return ProbedMicroBatch{.micro = micro,
                            .probe = {.ran = ran, .seconds = seconds, .micro_batches = count}};
  };
  EXPECT_EQ(fastest_of({tried(1, 0.8, 8), tried(2, 0.4, 4), tried(4, 0.5, 2)}), 1u);
  EXPECT_EQ(fastest_of({tried(1, 0.8, 8), tried(8, 0.6, 1)}), 1u);
  EXPECT_EQ(fastest_of({tried(1, 0.8, 8), tried(2, 0.8, 4)}), 0u);  // equal: the smaller
  EXPECT_EQ(fastest_of({tried(1, 0.8, 8), tried(2, 0, 4, false)}), 0u);
  const std::string text = choice_text({tried(2, 0.4, 4), tried(4, 0.8, 2)});
  EXPECT_EQ(text.find("the fastest that ran: train.micro_batch_size 2 (50"), 0u) << text;
  EXPECT_NE(text.find("; the largest, 4: 100"), std::string::npos) << text;
}

/// Data whose evaluation is scored by a model of another run.
class ScoredData final : public TrainingData {
 public:
  static constexpr std::size_t kScorer = 1 << 20;
  std::int64_t vocab_size() const override { return 19; }
  std::uint64_t vocab_hash() const override { return 0; }
  std::string vocabulary_json() const override { return {}; }
  std::string to_string() const override { return {}; }
  std::vector<std::pair<std::string, std::string>> hints() const override { return {}; }
  void require_resumable(std::int64_t) const override {}
  void start_training(const Sharding&, std::int64_t, const Position&) override {}
  ModelBatch next() override { return {}; }
  StepContent content(std::int64_t, const Model&) override { return {}; }
  bool has_validation() const override { return true; }
  EvaluationResult validate(ModelInstance&, ProgressLine*) override { return {}; }
  void add_scorers(MemoryPlan& plan, const Device*) const override { plan.add("scorer", kScorer); }
  void load_scorers(Device& device) override { loaded.emplace_back(device, kScorer); }

  std::vector<Buffer> loaded;
};

// They are on the device during the whole training, so a size that runs without them proves little.
TEST(Probes, ModelsThatScoreArePlannedAndLoaded) {
  const Deck deck = parse_deck(test::families(),
                               R"({
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 8, "vocab_size": 19},
    "data": {"format": "synthetic"},
    "train": {"micro_batch_size": 1, "global_batch_size": 1, "max_steps": 10}
  })",
                               "deck.json", {});
  Workplace place{.device = make_device(DeviceKind::cpu),
                  .mesh = Mesh::over_world(Layout(1, 1, 1, 1), Transport::mpi)};
  ScoredData data;
  const StepProbe alone = probe_step(deck, {}, {}, place);
  const StepProbe scored = probe_step(deck, {}, {}, place, 0, &data);
  ASSERT_TRUE(alone.ran && scored.ran) << alone.why << scored.why;
  EXPECT_EQ(scored.planned, alone.planned + static_cast<double>(ScoredData::kScorer));
  EXPECT_EQ(data.loaded.size(), 1u);
}

TEST(MemoryLeft, IsTheLeastOfSystemAndGroups) {
  const FakeSystem system;
  EXPECT_EQ(memory_left(system.root()), 0);  // no file has a limit
  system.write("/proc/meminfo", "MemTotal: 4000 kB\nMemAvailable: 2000 kB\n");
  EXPECT_EQ(memory_left(system.root()), 2000 * 1024);
  // A job of SLURM: the limit is in a group above that of the process.
  system.write("/proc/self/cgroup", "0::/job_1/step_0\n");
  system.write("/sys/fs/cgroup/job_1/step_0/memory.max", "max\n");
  system.write("/sys/fs/cgroup/job_1/memory.max", "1000000\n");
  system.write("/sys/fs/cgroup/job_1/memory.current", "400000\n");
  EXPECT_EQ(memory_left(system.root()), 600000);
  system.write("/sys/fs/cgroup/job_1/memory.stat", "anon 5\ninactive_file 100000\nslab 3\n");
  EXPECT_EQ(memory_left(system.root()), 700000);
  // Version 1 of control groups, and one without a limit that matters.
  system.write("/proc/self/cgroup", "5:cpu:/\n4:memory:/a\n");
  system.write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "500000\n");
  system.write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "450000\n");
  system.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory_left(system.root()), 50000);
}

}  // namespace
}  // namespace choir
