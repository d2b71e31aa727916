// Moments in bf16 in whole trainings on one rank: the bytes in plan and memory, offload of every
// kind, checkpoints, and the loss beside that of fp32 moments.
#include <gtest/gtest.h>

#include "src/train/step/train_checkpoint.hpp"
#include "test/support/offload_case.hpp"
#include "test/support/separate_device.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

EngineOptions narrow_moment_options(const char* precision, const char* rule, int stage = 0) {
  EngineOptions options =
      test::engine_options(stage == 2 ? test::tiny_llama() : test::tiny_gpt(), precision, 2);
  options.precision = with_narrow_moments(options.precision);
  options.optimizer.rule = &update_rule(rule);
  options.offload.second_moment = options.optimizer.rule->moments().size() > 1;
  options.zero.stage = stage;
  return options;
}

/// Rules and precisions that can be combined.
constexpr std::pair<const char*, const char*> kNarrowCases[] = {
    {"fp32", "adamw"}, {"bf16-true", "adamw"}, {"bf16-mixed", "muon"}};

TEST(NarrowTraining, Fp64HasNone) {
  EXPECT_THROW(with_narrow_moments(precision_of("fp64")), Error);
}

TEST(NarrowTraining, OffloadChangesNoBit) {
  const auto trained = [](const EngineOptions& options, std::unique_ptr<Device> device) {
    test::SingleRank single;
    return test::run_offloaded(options, *single.mesh, std::move(device));
  };
  for (const auto& [precision, rule] : kNarrowCases)
    for (const int stage : {0, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} {} stage {}", precision, rule, stage));
      EngineOptions options = narrow_moment_options(precision, rule, stage);
      const test::OffloadRun whole = trained(options, std::make_unique<CpuDevice>());
      const auto expect_same = [&](const OffloadOptions& offload, std::unique_ptr<Device> device) {
        options.offload = offload;
        EXPECT_TRUE(same_bits(whole, trained(options, std::move(device))));
      };
      expect_same(test::offload_to_file(), std::make_unique<CpuDevice>());
      expect_same(test::offload_to_host(), std::make_unique<test::SeparateDevice>());
      if (stage == 3)
        expect_same(test::offload_to_host(true), std::make_unique<test::SeparateDevice>());
    }
}

TEST(NarrowTraining, TheBytesAreHalvedInThePlanAndInMemory) {
  for (const auto& [precision, rule] : kNarrowCases)
    for (const OffloadOptions& offload : {OffloadOptions{}, test::offload_to_file()}) {
      SCOPED_TRACE(fmt::format("{} {} {}", precision, rule, offload.any()));
      EngineOptions options = narrow_moment_options(precision, rule, 1);
      options.offload = offload;
      test::SingleRank single;
      test::EngineRun run(options, *single.mesh);
      run.losses(1);
      const MemoryPlan plan = run.plan().memory;
      EXPECT_EQ(plan.to_string(), run.engine().memory().to_string());
      options.precision = precision_of(precision);
      const MemoryPlan wide = plan_step(options, Layout(), 0, 1, false).memory;
      const std::size_t moments = plan.bytes_of("optimizer moments");
      EXPECT_GT(moments, 0u);
      EXPECT_EQ(2 * moments, wide.bytes_of("optimizer moments"));
      EXPECT_LT(plan.total(), wide.total());
      for (const Parameter& p : run.engine().instance().parameters().parameters())
        EXPECT_EQ(run.engine().optimizer().moment(0, p).dtype, DType::bf16) << p.name;
    }
}

/// Continues the newest checkpoint with `options` after `step` steps.
std::unique_ptr<test::EngineRun> resumed_narrow(CheckpointStore& store,
                                                const EngineOptions& options, Mesh& mesh,
                                                std::int64_t step) {
  auto run = std::make_unique<test::EngineRun>(options, mesh);
  Progress restored;
  store.load(*store.find_newest_valid(), tensors_to_load(run->engine(), restored));
  run->engine().instance().publish();
  run->engine().resume(restored.update_state());
  run->start_at(step);
  return run;
}

std::vector<double> moments_of(test::EngineRun& run) {
  std::vector<double> values;
  for (const Parameter& p : run.engine().instance().parameters().parameters())
    for (const std::size_t which : {0, 1}) {
      if (!run.engine().optimizer().keeps(which, p)) continue;
      const TensorView view = run.engine().optimizer().moment(which, p);
      for (std::int64_t i = 0; i < view.count(); ++i)
        values.push_back(ref::load(view.data, view.dtype, i));
    }
  return values;
}

TEST(NarrowTraining, ResumesToTheBitAndConvertsTheOtherKind) {
  const test::TemporaryDirectory folder;
  std::int64_t saved = 0;
  for (const auto& [precision, rule] : kNarrowCases) {
    SCOPED_TRACE(fmt::format("{} {}", precision, rule));
    const EngineOptions narrow = narrow_moment_options(precision, rule);
    EngineOptions wide = narrow;
    wide.precision = precision_of(precision);
    test::SingleRank single;
    CheckpointStore store(folder.path() + "/checkpoints", single.mesh->world());
    const auto save = [&](test::EngineRun& run) {
      Progress progress{.step = 3, .updates = 3};
      ASSERT_TRUE(
          store.save({.step = ++saved, .json = "{}"}, tensors_to_save(run.engine(), progress))
              .saved);
    };
    test::EngineRun run(narrow, *single.mesh);
    run.losses(3);
    save(run);
    const std::vector<double> before = moments_of(run);
    EXPECT_EQ(moments_of(*resumed_narrow(store, wide, *single.mesh, 3)), before)
        << "f32 holds any bf16";
    const auto next = resumed_narrow(store, narrow, *single.mesh, 3);
    run.losses(2), next->losses(2);
    EXPECT_TRUE(test::same_bits(run.state(), next->state()));

    test::EngineRun other(wide, *single.mesh);
    other.losses(3);
    save(other);
    std::vector<double> nearest = moments_of(other);
    for (double& value : nearest) value = static_cast<float>(bf16(static_cast<float>(value)));
    EXPECT_EQ(moments_of(*resumed_narrow(store, narrow, *single.mesh, 3)), nearest);
  }
}

// Rounding of moments costs the loss less than another seed does.
TEST(NarrowTraining, TheLossIsWithinTheSpreadOfSeeds) {
  constexpr int kSteps = 40;
  const auto loss = [&](const EngineOptions& base, std::uint64_t seed) {
    EngineOptions options = base;
    options.seed = seed;
    test::SingleRank single;
    test::EngineRun run(options, *single.mesh);
    const std::vector<double> losses = run.losses(kSteps);
    double sum = 0;
    for (int i = kSteps - 10; i < kSteps; ++i) sum += losses[static_cast<std::size_t>(i)];
    return sum / 10;
  };
  for (const char* rule : {"adamw", "muon"}) {
    const EngineOptions narrow = narrow_moment_options("fp32", rule);
    EngineOptions wide = narrow;
    wide.precision = precision_of("fp32");
    double low = INFINITY, high = -INFINITY;
    for (const std::uint64_t seed : {1, 2, 3}) {
      const double one = loss(wide, seed);
      low = std::min(low, one), high = std::max(high, one);
    }
    for (const std::uint64_t seed : {1, 2, 3}) {
      const double one = loss(narrow, seed), same = loss(wide, seed);
      EXPECT_LE(std::abs(one - same), high - low) << rule << " seed " << seed;
      EXPECT_NE(one, same) << "the rounding is at work";
    }
  }
}

}  // namespace
}  // namespace choir
