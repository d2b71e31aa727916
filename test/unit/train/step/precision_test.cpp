// Tests of precisions that need more than a type: scaled losses, weights with random rounding, and
// both across a checkpoint.
#include <gtest/gtest.h>

#include "src/models/gpt/gpt.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/unit/store/fixtures.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

// A scale of 2^40 overflows f16 (the largest gradient of a logit is about 2^40 / 32 tokens), and
// each overflow halves it; nothing moves until it fits.
TEST(LossScale, OverflowsAreSkippedUntilTheScaleFits) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp16-mixed", 2);
  options.loss_scaling = {.start = 0x1p40, .window = 3};
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh);
  const std::vector<double> before = run.state();
  double scale = 0x1p40;
  int overflows = 0;
  for (StepResult r = run.step(); !r.updated; r = run.step(), ++overflows) {
    ASSERT_LT(overflows, 40);
    EXPECT_TRUE(r.overflow);
    EXPECT_TRUE(std::isfinite(r.loss)) << "the loss itself is not scaled";
    EXPECT_EQ(r.loss_scale, scale);
    EXPECT_TRUE(test::same_bits(before, run.state()));
    scale /= 2;
  }
  // A probability is at most 1: |d logit| <= scale / 32 tokens, below 65504 at the latest from 2^20
  // on. At the start some logit has |p - 1| > 1/2, which overflows at 2^22 and above.
  EXPECT_GE(overflows, 40 - 22 + 1);
  EXPECT_EQ(run.engine().update_state().updates, 1);
  EXPECT_EQ(run.engine().update_state().loss_scale, scale);
  EXPECT_FALSE(test::same_bits(before, run.state()));
}

TEST(LossScale, AtItsMinimumABadStepIsNoOverflow) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp16-mixed", 1);
  options.loss_scaling = {.start = 2, .window = 3};
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh);
  EXPECT_TRUE(run.step(NAN).overflow);
  const StepResult r = run.step(NAN);
  EXPECT_EQ(r.loss_scale, 1);
  EXPECT_FALSE(r.updated || r.overflow);
  options.loss_scaling = {.start = 1024, .window = 0};
  test::SingleRank other;
  test::EngineRun constant(options, *other.mesh);
  EXPECT_FALSE(constant.step(NAN).overflow) << "a constant scale mends nothing";
}

// Multiplying the loss by a power of two, and dividing the gradient by it, changes no bit in f64:
// the factor really is removed, in the norm as well as in the update.
TEST(LossScale, PowersOfTwoCancelExactly) {
  std::vector<double> numbers, state;
  for (const double scale : {1.0, 1024.0}) {
    EngineOptions options = test::engine_options(test::tiny_gpt(), "fp64", 2);
    options.loss_scaling = {.start = scale, .window = 0};
    test::SingleRank single;
    test::EngineRun run(options, *single.mesh);
    std::vector<double> found;
    for (int i = 0; i < 5; ++i) {
      const StepResult r = run.step();
      EXPECT_EQ(r.loss_scale, scale);
      found.push_back(r.loss), found.push_back(r.grad_norm);
    }
    if (scale == 1) {
      numbers = found, state = run.state();
      continue;
    }
    EXPECT_TRUE(test::same_bits(numbers, found));
    EXPECT_TRUE(test::same_bits(state, run.state()));
    const std::vector<double> scaled = run.gradients();
    EXPECT_GT(*std::max_element(scaled.begin(), scaled.end()), 10 * run.step().grad_norm)
        << "the gradients themselves carry it";
  }
}

/// Losses and final state of steps 3 to 6 after a checkpoint at 3, or without an interruption.
struct Course {
  std::vector<double> losses, state;
  UpdateState updates;
};
Course course(const EngineOptions& options, bool interrupted, bool with_update_state = true) {
  const test::TemporaryDirectory folder;
  test::SingleRank single;
  auto run = std::make_unique<test::EngineRun>(options, *single.mesh);
  run->losses(3);
  if (interrupted) {
    const UpdateState& at = run->engine().update_state();
    Progress progress{.step = 3, .updates = at.updates};
    progress.loss_scale = at.loss_scale, progress.good_steps = at.good_steps;
    CheckpointStore store(folder.path() + "/checkpoints", single.mesh->world());
    EXPECT_TRUE(
        store.save({.step = 3, .json = "{}"}, tensors_to_save(run->engine(), progress)).saved);
    run = std::make_unique<test::EngineRun>(options, *single.mesh);
    run->start_at(3);
    Progress restored;
    store.load(*store.find_newest_valid(), tensors_to_load(run->engine(), restored));
    run->engine().instance().publish();
    if (with_update_state) run->engine().resume(restored.update_state());
  }
  Course result;
  result.losses = run->losses(4);
  result.state = run->state();
  result.updates = run->engine().update_state();
  return result;
}

TEST(Resume, BitwiseInEveryPrecision) {
  for (const char* precision : {"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"}) {
    EngineOptions options = test::engine_options(test::tiny_gpt(), precision, 2);
    // 2^23 overflows twice or thrice at first; then it moves again within the steps after 3.
    if (std::string_view(precision) == "fp16-mixed")
      options.loss_scaling = {.start = 0x1p23, .window = 2};
    const Course straight = course(options, false), resumed = course(options, true);
    EXPECT_TRUE(test::same_bits(straight.losses, resumed.losses)) << precision;
    EXPECT_TRUE(test::same_bits(straight.state, resumed.state)) << precision;
    EXPECT_EQ(straight.updates.updates, resumed.updates.updates) << precision;
    EXPECT_EQ(straight.updates.loss_scale, resumed.updates.loss_scale) << precision;
    EXPECT_EQ(straight.updates.good_steps, resumed.updates.good_steps) << precision;
    const Course forgetful = course(options, true, false);
    EXPECT_FALSE(test::same_bits(straight.state, forgetful.state))
        << precision << ": without the update count another course";
  }
}

// bf16-true keeps 14 bytes per parameter, whereas bf16-mixed keeps 18.
TEST(Precision, BytesAParameterAreThoseOfTheTable) {
  for (const auto& [name, bytes] : std::vector<std::pair<const char*, double>>{
           {"fp64", 32}, {"fp32", 16}, {"bf16-mixed", 18}, {"bf16-true", 14}, {"fp16-mixed", 18}}) {
    const StepPlan plan =
        plan_step(test::engine_options(test::tiny_gpt(), name, 1), Layout(), 0, 1, false);
    double found = 0;
    for (const MemoryPlan::Entry& entry : plan.memory.entries)
      for (const char* what : {"parameters", "gradients", "optimizer"})
        if (entry.name.starts_with(what)) found += static_cast<double>(entry.bytes);
    ParameterSet set;
    const Gpt model(test::tiny_gpt(), set);
    set.place(1);
    EXPECT_EQ(found, bytes * static_cast<double>(set.flat_size())) << name;
  }
}

// Rounding to nearest loses updates below half a bf16 step: at a learning rate of 2^-14 most
// weights around 0.02 (steps of 2^-13) would not move. With random rounding the mean movement is
// that of fp32: one rounding of w has an error of at most a step, 2^-7 |w|, with mean 0 and thus a
// standard deviation of at most half of that; n of them in each of N weights leave a mean error
// below five times 2^-8 max|w| sqrt(n / N).
TEST(Precision, SmallUpdatesAreNotLost) {
  const auto weights = [](const char* precision) {
    EngineOptions options = test::engine_options(test::tiny_gpt(), precision, 1);
    options.schedule = {.kind = LrSchedule::Kind::constant, .peak = 0x1p-14};
    options.optimizer.weight_decay = 0;
    test::SingleRank single;
    test::EngineRun run(options, *single.mesh);
    std::map<std::string, std::vector<double>> first, moved;
    const auto read = [&](std::map<std::string, std::vector<double>>& into) {
      for (const Parameter& p : run.engine().instance().parameters().parameters())
        for (std::int64_t i = 0; i < p.count(); ++i)
          into[p.name].push_back(ref::load(p.master.data, p.master.dtype, i));
    };
    read(first);
    run.losses(8);
    read(moved);
    return std::pair(first, moved);
  };
  const auto exact = weights("fp32"), rounded = weights("bf16-true");
  double error = 0, movement = 0, largest = 0, count = 0;
  for (const auto& [name, start] : rounded.first) {
    if (!name.ends_with("weight") || name.find("norm") != std::string::npos) continue;
    for (std::size_t i = 0; i < start.size(); ++i) {
      // The sign of the fp32 movement defines the forward direction.
      const double want = exact.second.at(name)[i] - exact.first.at(name)[i];
      const double got = rounded.second.at(name)[i] - start[i];
      error += (got - want) * (want < 0 ? -1 : 1);
      movement += std::abs(want);
      largest = std::max(largest, std::abs(start[i]));
      ++count;
    }
  }
  const double bound = 5 * 0x1p-8 * largest * std::sqrt(8 / count);
  EXPECT_LT(bound, 0.5 * movement / count) << "the bound must say something";
  // Apart from the roundings the runs differ: if gradients are near zero, Adam's sign may change.
  EXPECT_LE(std::abs(error / count), bound + 0.1 * movement / count);
}

}  // namespace
}  // namespace choir
