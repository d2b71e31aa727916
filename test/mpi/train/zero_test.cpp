// Tests that training is the same as on one rank that has everything, for any ZeRO stage, number of
// ranks, groups and accumulation.
#include <gtest/gtest.h>
#include <unistd.h>

#include "src/comm/agreement.hpp"
#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/token_data.hpp"
#include "src/store/collectives.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/mpi/train/curve.hpp"
#include "test/support/exhaustive.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/store/fixtures.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

using test::Curve;
using test::kSteps;
using test::train_one_replica;
using test::train_replicas;
using test::world_mesh;

/// Every stage, with all possible groups on this number of ranks.
std::vector<ZeroOptions> all_options() {
  std::vector<ZeroOptions> list;
  for (const int stage : {1, 2, 3})
    for (int group = 1; group <= test::world_size(); ++group)
      if (test::world_size() % group == 0) list.push_back({.stage = stage, .group = group});
  list.push_back({.stage = 2, .group = ZeroOptions::kNode});
  list.push_back({.stage = 3, .prefetch = 0});
  list.push_back({.stage = 3, .prefetch = 3});
  return list;
}

std::string name_of_zero(const ZeroOptions& zero) {
  return fmt::format("stage {} group {} prefetch {}", zero.stage, zero.group, zero.prefetch);
}

/// Three layers, so that a ring of two slots is reused; tensors of several norm chunks, some of
/// which are cut by slices.
GptConfig deeper_and_wider(GptConfig c) {
  c.n_layer = 3;
  c.vocab_size = 1111;
  return c;
}

TEST(Zero, AnyStageTrainsTheSameInFp64) {
  GptConfig dropped = test::tiny_gpt();
  dropped.dropout = 0.2;
  std::size_t pass = 0;
  for (const GptConfig& model : {test::tiny_gpt(), test::tiny_llama(), dropped})
    for (const std::int64_t micro_batches : {1 * test::world_size(), 12}) {
      EngineOptions options = test::engine_options(model, "fp64", 1);
      const Curve one = train_one_replica(options, micro_batches, kSteps);
      for (const Transport transport : {Transport::mpi, Transport::automatic}) {
        const auto mesh = world_mesh(transport);
        for (const ZeroOptions& zero : test::dealt(all_options(), pass++)) {
          options.zero = zero;
          const Curve many = train_replicas(options, *mesh, micro_batches, kSteps);
          EXPECT_ALL_RANKS(test::distance(one.losses, many.losses) <= 1e-12) << name_of_zero(zero);
          EXPECT_ALL_RANKS(test::distance(one.state, many.state) <= 1e-12)
              << name_of_zero(zero) << " " << test::distance(one.state, many.state);
        }
      }
    }
}

TEST(Zero, RatesByPatternAreThoseOfOneRank) {
  EngineOptions options = test::engine_options(deeper_and_wider(test::tiny_gpt()), "fp64", 1);
  const Curve plain = train_one_replica(options, 12, 5);
  options.rate_scales = {{"embedding.*", 0.1}, {"blocks.1.*", 0.25}, {"blocks.2.*.bias", 4}};
  const Curve one = train_one_replica(options, 12, 5);
  EXPECT_ALL_RANKS(test::distance(plain.state, one.state) > 1e-6) << "the comparison can fail";
  const auto mesh = world_mesh();
  std::vector<ZeroOptions> every = all_options();
  every.push_back({});
  for (const ZeroOptions& zero : every) {
    options.zero = zero;
    test::expect_equal(one, train_replicas(options, *mesh, 12, 5), name_of_zero(zero));
  }
  options.zero = {};
  options.micro_batches = 12;
  if (test::world_size() > 3) return;  // stages of three layers
  const int ranks = test::world_size();
  const auto stages = Mesh::over_world(Layout(1, 1, 1, ranks), Transport::automatic);
  const Curve parts = test::train(options, *stages, 5);
  EXPECT_ALL_RANKS(test::distance(one.losses, parts.losses) <= 1e-12) << "of a pipeline";
  EXPECT_ALL_RANKS(test::distance(one.norms, parts.norms) <= 1e-12) << "of a pipeline";
  if (ranks == 3) return;  // of four heads
  const auto tensor = Mesh::over_world(Layout(ranks, 1, 1, 1), Transport::automatic);
  test::expect_equal(one, test::train(options, *tensor, 5), "tensor axis");
}

TEST(Zero, SameBitsInReproducibleMode) {
  if ((test::world_size() & (test::world_size() - 1)) != 0) GTEST_SKIP() << "powers of two only";
  GptConfig dropped = deeper_and_wider(test::tiny_llama());
  dropped.dropout = 0.2;
  std::size_t pass = 0;
  for (const char* precision : {"fp32", "bf16-mixed", "bf16-true", "fp16-mixed"})
    for (const GptConfig& model : {deeper_and_wider(test::tiny_gpt()), dropped}) {
      EngineOptions options = test::engine_options(model, precision, 1, true);
      const Curve one = train_one_replica(options, 8, 4);
      for (const Transport transport : {Transport::mpi, Transport::automatic}) {
        const auto mesh = world_mesh(transport);
        for (const ZeroOptions& zero : test::dealt(all_options(), pass++)) {
          options.zero = zero;
          const Curve many = train_replicas(options, *mesh, 8, 4);
          EXPECT_ALL_RANKS(test::same_bits(one.losses, many.losses)) << name_of_zero(zero);
          EXPECT_ALL_RANKS(test::same_bits(one.norms, many.norms)) << name_of_zero(zero);
          EXPECT_ALL_RANKS(test::same_bits(one.state, many.state))
              << precision << name_of_zero(zero);
        }
      }
    }
}

// Norm of a gradient whose chunks are cut by slices: without `exact` the last bits may differ, but
// it is still the norm.
TEST(Zero, NormOfSlicesIsTheNorm) {
  EngineOptions options = test::engine_options(deeper_and_wider(test::tiny_gpt()), "fp64", 1);
  const Curve one = train_one_replica(options, 12, 2);
  const auto mesh = world_mesh();
  for (const int stage : {1, 2, 3}) {
    options.zero.stage = stage;
    const Curve many = train_replicas(options, *mesh, 12, 2);
    // Sums of n positive terms by chunks have an error far below n eps.
    EXPECT_ALL_RANKS(test::distance(one.norms, many.norms) <= 1e-13) << stage;
  }
}

/// Values in memory of the slices that other ranks own; one step with their old values.
void forget_gather(test::EngineRun& run) {
  ParameterStorage& storage = run.engine().instance().storage();
  std::vector<std::vector<double>> before;
  for (const Bucket& bucket : storage.parameters().buckets()) {
    const TensorView values = storage.whole_values(bucket);
    before.emplace_back(values.as<double>(), values.as<double>() + values.count());
  }
  run.step();
  std::size_t b = 0;
  for (const Bucket& bucket : storage.parameters().buckets()) {
    const Range mine = storage.sharding().slice(bucket);
    auto* values = storage.whole_values(bucket).as<double>();
    for (std::int64_t i = 0; i < bucket.size; ++i)
      if (i < mine.first || i >= mine.end()) values[i] = before[b][static_cast<std::size_t>(i)];
    ++b;
  }
}

TEST(Zero, NegativeControlForgottenGather) {
  if (test::world_size() == 1) GTEST_SKIP() << "needs another rank";
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp64", 1);
  const Curve one = train_one_replica(options, test::world_size(), 4);
  const auto mesh = world_mesh();
  options.zero.stage = 1;
  test::EngineRun run(options, *mesh);
  run.step();
  forget_gather(run);
  run.losses(2);
  EXPECT_ALL_RANKS(test::distance(one.state, run.state()) > 1e-9);
}

// A rank is wrong about the border of its slice by the padding of one tensor: the others read its
// values at a wrong position.
TEST(Zero, NegativeControlShiftedSlice) {
  if (test::world_size() == 1) GTEST_SKIP() << "needs another rank";
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp64", 1);
  const Curve one = train_one_replica(options, test::world_size(), 4);
  const auto mesh = world_mesh();
  options.zero.stage = 2;
  test::EngineRun run(options, *mesh);
  run.losses(3);
  ParameterStorage& storage = run.engine().instance().storage();
  for (const Bucket& bucket : storage.parameters().buckets()) {
    const TensorView masters = storage.masters(bucket);
    auto* w = masters.as<double>();
    if (mesh->rank() == 1) std::rotate(w, w + ParameterSet::kSliceAlignment, w + masters.count());
  }
  run.engine().instance().publish();
  EXPECT_ALL_RANKS(std::abs(run.step().loss - one.losses[3]) > 1e-9);
}

TEST(Zero, NanOnOneRankSkipsEverywhere) {
  const auto mesh = world_mesh();
  for (const int stage : {1, 2, 3}) {
    EngineOptions options = test::engine_options(test::tiny_gpt(), "bf16-mixed", 2);
    options.zero.stage = stage;
    options.compare_counts = false;  // one rank is told another number of tokens below
    test::EngineRun run(options, *mesh);
    run.losses(2);
    const std::vector<double> before = run.state();
    const bool victim = mesh->rank() == mesh->world().size() - 1;
    const StepResult result = run.step(victim ? NAN : run.tokens_of_step());
    EXPECT_ALL_RANKS(!result.updated);
    EXPECT_ALL_RANKS(!run.engine().non_finite_gradients().empty());
    EXPECT_ALL_RANKS(test::same_bits(before, run.state()));
    EXPECT_ALL_RANKS(run.step().updated) << "the next step is clean again";
  }
}

TEST(Zero, PlanEqualsRealityToTheByte) {
  const auto mesh = world_mesh();
  for (const char* precision : {"fp64", "bf16-mixed", "bf16-true"})
    for (const bool reproducible : {false, true})
      for (const ZeroOptions& zero : all_options()) {
        if (reproducible && (test::world_size() & (test::world_size() - 1)) != 0) continue;
        EngineOptions options =
            test::engine_options(deeper_and_wider(test::tiny_llama()), precision, 4, reproducible);
        options.zero = zero;
        test::EngineRun run(options, *mesh, 4096);
        run.losses(2);
        run.engine().instance().loss_sum(run.batch(77));
        run.losses(1);
        const MemoryPlan real = run.engine().memory();
        const MemoryPlan& plan = run.plan().memory;
        bool same = plan.entries.size() == real.entries.size();
        for (std::size_t i = 0; same && i < real.entries.size(); ++i)
          same = plan.entries[i].name == real.entries[i].name &&
                 plan.entries[i].bytes == real.entries[i].bytes;
        EXPECT_ALL_RANKS(same) << name_of_zero(zero) << "\n"
                               << plan.to_string() << "\n"
                               << real.to_string();
      }
}

double sharded_loss_over(Mesh& mesh, const ZeroOptions& zero) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 1);
  options.zero = zero;
  return test::loss_of_validation(options, mesh);
}

TEST(Zero, EvaluationAndGenerationDoNotSeeIt) {
  const auto mesh = world_mesh();
  const double whole = sharded_loss_over(*mesh, {});
  const auto text = [&](const ZeroOptions& zero) {
    EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 1);
    options.zero = zero;
    test::EngineRun run(options, *mesh, std::size_t{1} << 20);
    return Generator(run.engine().instance()).generate({1, 2, 3}, 20, {.seed = 4});
  };
  const std::vector<std::int32_t> written = text({});
  for (const ZeroOptions& zero : all_options()) {
    EXPECT_ALL_RANKS(sharded_loss_over(*mesh, zero) == whole) << name_of_zero(zero);
    EXPECT_ALL_RANKS(text(zero) == written) << name_of_zero(zero);
  }
}

// Any stage reads the checkpoint of any other, and continues to the bit.
TEST(Zero, CheckpointsKnowNoStage) {
  const auto mesh = world_mesh();
  const bool power_of_two = (test::world_size() & (test::world_size() - 1)) == 0;
  std::unique_ptr<test::TemporaryDirectory> folder;
  std::string path;
  if (mesh->rank() == 0) {
    folder = std::make_unique<test::TemporaryDirectory>();
    path = folder->path() + "/checkpoints";
  }
  share_text(mesh->world(), path);
  std::int64_t saved = 0;
  for (const char* precision : {"fp32", "bf16-mixed"}) {
    EngineOptions options =
        test::engine_options(deeper_and_wider(test::tiny_gpt()), precision, 2, power_of_two);
    std::vector<ZeroOptions> stages{{}, {.stage = 1}, {.stage = 2}, {.stage = 3}};
    if (test::world_size() == 4) stages.push_back({.stage = 3, .group = 2});
    for (std::size_t from = 0; from < stages.size(); ++from) {
      options.zero = stages[from];
      test::EngineRun run(options, *mesh);
      run.losses(2);
      Progress progress{.step = 2, .updates = 2};
      CheckpointStore store(path, mesh->world());
      ASSERT_ALL_RANKS(
          store.save({.step = ++saved, .json = "{}"}, tensors_to_save(run.engine(), progress))
              .saved);
      const std::vector<double> there = run.state();
      run.losses(2);
      for (const std::size_t to : {(from + 1) % stages.size(), (from + 2) % stages.size()}) {
        options.zero = stages[to];
        test::EngineRun next(options, *mesh);
        Progress restored;
        store.load(*store.find_newest_valid(), tensors_to_load(next.engine(), restored));
        next.engine().instance().publish();
        EXPECT_ALL_RANKS(test::same_bits(there, next.state())) << from << " -> " << to;
        next.engine().resume(restored.update_state());
        next.start_at(2);
        next.losses(2);
        if (!power_of_two) continue;
        EXPECT_ALL_RANKS(test::same_bits(run.state(), next.state())) << from << " -> " << to;
      }
    }
  }
}

// Slices that are off by one do not cover the tensors; saving them is refused on every rank.
TEST(Zero, NegativeControlPiecesOffByOne) {
  if (test::world_size() == 1) GTEST_SKIP() << "needs another rank";
  const auto mesh = world_mesh();
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 1);
  options.zero.stage = 1;
  test::EngineRun run(options, *mesh);
  Progress progress;
  auto tensors = tensors_to_save(run.engine(), progress);
  if (mesh->rank() == 1)
    for (StoredTensor& tensor : tensors)
      for (StoredPiece& piece : tensor.pieces) --piece.first;
  bool refused = false;
  try {
    const std::string folder = testing::TempDir() + "choir_refused_" + std::to_string(::getpid());
    CheckpointStore(folder, mesh->world()).save({.step = 1, .json = "{}"}, tensors);
  } catch (const Error&) {
    refused = true;
  }
  EXPECT_ALL_RANKS(refused);
}

TEST(Zero, GroupsThatDoNotComeOutAreRefused) {
  const auto mesh = world_mesh();
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 1);
  options.zero = {.stage = 1, .group = test::world_size() + 1};
  EXPECT_ALL_RANKS([&] {
    try {
      plan_step(options, mesh->layout(), mesh->rank(), 1, false);
    } catch (const DeckError&) {
      return true;
    }
    return false;
  }());
}

}  // namespace
}  // namespace choir
