// The mean of checkpoints against numbers of torch.optim.swa_utils and a sum in long double, on any
// number of ranks; and everything that is refused.
#include "src/run/averaged_run.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <set>

#include "choir/deck/deck.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/collectives.hpp"
#include "src/store/store.hpp"
#include "test/support/families.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLarge = 1'100'003;  // more than a chunk, and odd

/// Six states of three weights and their running means, by torch.optim.swa_utils.AveragedModel.
constexpr double kWeights[6][3] = {{0.5, -1.0, 2.0},     {0.25, -0.875, 1.96875},
                                   {1.0, -1.25, 2.0625}, {-0.25, -0.625, 1.90625},
                                   {1.5, -1.5, 2.125},   {-0.75, -0.375, 1.84375}};
constexpr double kMeans[6][3] = {{0.5, -1.0, 2.0},
                                 {0.375, -0.9375, 1.984375},
                                 {0.5833333333333334, -1.0416666666666667, 2.0104166666666665},
                                 {0.375, -0.9375, 1.984375},
                                 {0.6, -1.05, 2.0125},
                                 {0.375, -0.9375, 1.984375}};

float value(std::int64_t step, std::int64_t i) {
  const double unit =
      static_cast<double>(test::mixed(static_cast<std::uint64_t>(step * kLarge + i)) >> 11) *
      0x1p-53;
  return static_cast<float>((unit - 0.5) * std::exp2(static_cast<double>(i % 30) - 15));
}

class AveragedRun : public ::testing::Test {
 protected:
  AveragedRun() : world_(make_mpi_communicator(MPI_COMM_WORLD, "world")) {
    if (world_->rank() == 0) folder_ = std::make_unique<test::TemporaryDirectory>();
    if (folder_) path_ = folder_->path();
    share_text(*world_, path_);
  }
  ~AveragedRun() override { world_->barrier(); }

  std::unique_ptr<Communicator> first(int n) {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_->rank() < n ? 0 : MPI_UNDEFINED, 0, &part);
    if (part == MPI_COMM_NULL) return nullptr;
    auto comm = make_mpi_communicator(part, "first " + std::to_string(n));
    MPI_Comm_free(&part);
    return comm;
  }

  std::string run() const { return path_ + "/run"; }

  struct Differences {
    std::vector<std::string> overrides{};
    std::int64_t large = kLarge;
    double third = 2.0;
    std::string vocabulary{};
  };
  /// Saves the state `k` of kWeights as step 10 (k + 1). Collective.
  void save(int k, const Differences& differences) {
    const std::int64_t step = 10 * (k + 1);
    const Deck deck = read_deck(test::families(), "inputs/verify_gpt.json", differences.overrides);
    std::array<double, 3> golden{};
    std::copy_n(kWeights[k], 3, golden.begin());
    if (differences.third != 2.0) golden[2] = differences.third;
    std::vector<float> large(static_cast<std::size_t>(differences.large));
    for (std::size_t i = 0; i < large.size(); ++i)
      large[i] = value(step, static_cast<std::int64_t>(i));
    std::array<std::uint16_t, 2> frozen{0x3f81, 0xc123};
    std::array<float, 2> running{static_cast<float>(k), 3.0f};
    std::array<double, 3> moment{7, 8, 9};
    Progress progress{.step = step, .updates = step};
    std::vector<StoredTensor> list;
    const auto add = [&](const char* name, DType type, const Shape& shape, void* data) {
      StoredTensor tensor{.name = name, .dtype = type, .shape = shape, .pieces = {}};
      if (world_->rank() == 0) tensor.pieces.push_back({0, shape.count(), data});
      list.push_back(std::move(tensor));
    };
    add("parameters/a", DType::f64, {3}, golden.data());
    add("parameters/large", DType::f32, {differences.large}, large.data());
    add("parameters/frozen", DType::bf16, {1, 2}, frozen.data());
    add("optimizer/m/a", DType::f64, {3}, moment.data());
    add("state/running/norm.running_mean", DType::f32, {2}, running.data());
    for (const State& state : progress.states(false))
      add(("state/" + state.name).c_str(), state.value.dtype, state.value.shape, state.value.data);
    const TrainMeta meta{.deck = resolved_json(deck),
                         .vocabulary = differences.vocabulary,
                         .vocab_size = 65,
                         .data = "{}",
                         .contents = "",
                         .provenance = "{}"};
    StoreOptions keep;
    keep.retention.keep_last = 100;
    CheckpointStore store(run() + "/checkpoints", *world_, keep);
    const SaveResult result =
        store.save({.step = step, .json = meta.to_json(), .layout = "test"}, list);
    ASSERT_ALL_RANKS(result.saved) << result.reason;
  }
  void save_all() {
    for (int k = 0; k < 6; ++k) save(k, {});
  }

  AverageRequest request(int last, const std::string& out) const {
    return {.families = &test::families(),
            .run = run(),
            .steps = {},
            .last = last,
            .out = path_ + "/" + out};
  }

  /// The code and text of the error of an average on all ranks. Collective.
  std::pair<ExitCode, std::string> refusal(const AverageRequest& wish) {
    std::pair<ExitCode, std::string> result{ExitCode::done, ""};
    try {
      average_checkpoints(*world_, wish);
    } catch (const Error& error) {
      result = {error.code(), error.what()};
    }
    std::int64_t codes = static_cast<std::int64_t>(result.first);
    world_->all_reduce(&codes, 1, DType::i64, ReduceOp::sum);
    EXPECT_EQ(codes, static_cast<std::int64_t>(result.first) * world_->size()) << "all ranks alike";
    return result;
  }

  std::unique_ptr<Communicator> world_;
  std::unique_ptr<test::TemporaryDirectory> folder_;
  std::string path_;
};

/// Everything of a checkpoint that the tests look at, read by one rank.
struct Read {
  std::array<double, 3> a{}, moment{1, 1, 1};
  std::vector<float> large = std::vector<float>(static_cast<std::size_t>(kLarge));
  std::array<std::uint16_t, 2> frozen{};
  std::array<float, 2> running{};
  Checkpoint checkpoint;
  Progress progress;
};

Read read(const std::string& run, Communicator& world) {
  Read result;
  result.progress.step = -1;
  result.checkpoint = open_checkpoint(run, world);
  std::vector<StoredTensor> list;
  const auto add = [&](const char* name, DType type, const Shape& shape, void* data) {
    list.push_back(
        {.name = name, .dtype = type, .shape = shape, .pieces = {{0, shape.count(), data}}});
  };
  add("parameters/a", DType::f64, {3}, result.a.data());
  add("parameters/large", DType::f32, {kLarge}, result.large.data());
  add("parameters/frozen", DType::bf16, {1, 2}, result.frozen.data());
  add("optimizer/m/a", DType::f64, {3}, result.moment.data());
  add("state/running/norm.running_mean", DType::f32, {2}, result.running.data());
  for (const State& state : result.progress.states(false))
    add(("state/" + state.name).c_str(), state.value.dtype, state.value.shape, state.value.data);
  load_checkpoint(result.checkpoint, list, world);
  return result;
}

TEST_F(AveragedRun, IsTheMeanOnAnyNumberOfRanks) {
  save_all();
  std::uint32_t reference = 0;
  for (const int n : std::set<int>{1, world_->size()}) {
    const auto part = first(n);
    if (part) {
      const std::string out = path_ + "/mean_" + std::to_string(n);
      AverageRequest wish = request(6, "mean_" + std::to_string(n));
      const AverageReport report = average_checkpoints(*part, wish);
      EXPECT_EQ(report.steps, (std::vector<std::int64_t>{10, 20, 30, 40, 50, 60}));
      EXPECT_EQ(report.tensors, 4);
      const Read mean = read(out, *part);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(mean.a[i], kMeans[5][i], 1e-15);
        EXPECT_EQ(mean.moment[i], 0);
      }
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < kLarge; ++i) {
        long double sum = 0;
        for (int k = 0; k < 6; ++k) sum += value(10 * (k + 1), i);
        const auto exact = static_cast<double>(sum / 6);
        // Half a unit in the last place of f32, and six roundings of f64 at the size of the terms.
        const double bound = 0x1p-24 * std::abs(exact) + 6 * 0x1p-53 * std::exp2(i % 30 - 16);
        wrong += std::abs(mean.large[static_cast<std::size_t>(i)] - exact) > bound;
      }
      EXPECT_EQ(wrong, 0);
      EXPECT_EQ(mean.frozen, (std::array<std::uint16_t, 2>{0x3f81, 0xc123}));
      EXPECT_EQ(mean.running, (std::array<float, 2>{2.5f, 3.0f}));
      EXPECT_EQ(mean.progress.step, 0);
      EXPECT_EQ(mean.progress.updates, 0);
      EXPECT_EQ(mean.checkpoint.manifest.layout, "average of 6 checkpoints");
      const TrainMeta meta = TrainMeta::parse(mean.checkpoint.json, out);
      EXPECT_NE(meta.provenance.find("/run/checkpoints/step_00000060"), std::string::npos);
      EXPECT_EQ(meta.data, "");
      EXPECT_NE(meta.deck.find(out), std::string::npos) << "run.dir";
      EXPECT_TRUE(fs::exists(out + "/deck.json"));
      std::uint32_t weights = 0;
      for (const TensorRecord& record : mean.checkpoint.manifest.tensors) weights ^= record.crc32c;
      if (reference == 0) reference = weights;
      EXPECT_EQ(weights, reference) << "the same bits on every number of ranks";
    }
    world_->barrier();
  }
}

TEST_F(AveragedRun, OfTheNewestAndOfChosenSteps) {
  save_all();
  EXPECT_EQ(average_checkpoints(*world_, request(2, "last")).steps,
            (std::vector<std::int64_t>{50, 60}));
  EXPECT_EQ(read(path_ + "/last", *world_).a, (std::array<double, 3>{0.375, -0.9375, 1.984375}));
  AverageRequest some = request(0, "some");
  some.steps = {10, 20, 30};
  average_checkpoints(*world_, some);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(read(path_ + "/some", *world_).a[i], kMeans[2][i], 1e-15);
}

TEST_F(AveragedRun, ADamagedCheckpointIsPassedOverUnlessItIsNamed) {
  save_all();
  if (world_->rank() == 0) {
    std::fstream file(run() + "/checkpoints/step_00000050/state.h5",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(2'000'000);
    file.put('x').put('y').put('z');
  }
  world_->barrier();
  const AverageReport report = average_checkpoints(*world_, request(2, "without"));
  EXPECT_EQ(report.steps, (std::vector<std::int64_t>{40, 60}));
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_NE(report.skipped[0].find("step 50"), std::string::npos);
  AverageRequest named = request(0, "named");
  named.steps = {50, 60};
  EXPECT_EQ(refusal(named).first, ExitCode::storage);
  const auto [code, text] = refusal(request(6, "six"));
  EXPECT_EQ(code, ExitCode::deck);
  EXPECT_NE(text.find("has 5 checkpoints that can be averaged, not 6: steps 10, 20, 30, 40, 60"),
            std::string::npos)
      << text;
}

TEST_F(AveragedRun, RefusesWhatHasNoMean) {
  for (int k = 0; k < 3; ++k) save(k, {});
  AverageRequest missing = request(0, "missing");
  missing.steps = {10, 25};
  EXPECT_NE(refusal(missing).second.find("has no checkpoint of step 25"), std::string::npos);
  EXPECT_EQ(refusal(missing).first, ExitCode::deck);
  AverageRequest taken = request(2, "run");
  EXPECT_NE(refusal(taken).second.find("is not empty"), std::string::npos);

  save(3, {.overrides = {}, .large = kLarge - 1});
  const auto [code, shapes] = refusal(request(2, "shapes"));
  EXPECT_EQ(code, ExitCode::deck);
  EXPECT_NE(shapes.find("parameters/large is f32 [1100003] in the first, f32 [1100002]"),
            std::string::npos)
      << shapes;
  save(3, {.overrides = {}, .vocabulary = R"({"kind":"of another program"})"});
  EXPECT_NE(refusal(request(2, "words")).second.find("their vocabularies differ"),
            std::string::npos);
  save(3, {.overrides = {"model.lora.rank=2"}});
  EXPECT_NE(refusal(request(2, "adapters")).second.find("has adapters"), std::string::npos);
  save(3, {.overrides = {}, .third = std::numeric_limits<double>::quiet_NaN()});
  const auto [numeric, nan] = refusal(request(2, "nan"));
  EXPECT_EQ(numeric, ExitCode::numeric);
  EXPECT_NE(nan.find("step_00000040: element 2 of parameters/a is not finite"), std::string::npos)
      << nan;
  for (const char* out : {"missing", "shapes", "words", "adapters", "nan"})
    EXPECT_FALSE(fs::exists(path_ + "/" + out)) << "nothing is left of " << out;
}

}  // namespace
}  // namespace choir
