// Tests of the comparison in verify: it detects wrong and missing values, and values that two ranks
// own.
#include "src/lab/verify/verify_record.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/models/gpt/token_data.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

/// Two tensors, and a run of two steps.
RunRecord record() {
  RunRecord r;
  r.losses = {4, 0.5}, r.norms = {2, 1};
  r.tensors = {{"parameters/a", "[4]", 0, 4, 2}, {"gradients/a", "[4]", 4, 4, 0.5}};
  r.values = {1, 2, -1, 0, 0.5, 0, 0, -0.25};
  return r;
}

/// Pieces of the values of another rank.
std::vector<StoredTensor> pieces(std::vector<double>& values,
                                 const std::vector<StoredPiece>& of_first) {
  std::vector<StoredTensor> tensors{
      {.name = "parameters/a", .dtype = DType::f64, .shape = {4}, .pieces = of_first},
      {.name = "gradients/a", .dtype = DType::f64, .shape = {4}, .pieces = {{0, 4, &values[4]}}}};
  for (StoredPiece& piece : tensors[0].pieces)
    piece.data = &values[static_cast<std::size_t>(piece.first)];
  return tensors;
}

TEST(RunDistance, MeasuresByScale) {
  const RunRecord r = record();
  std::vector<double> values = r.values;
  values[2] += 0.1;
  values[7] += 0.1;
  RunDistance d(r);
  d.add_step(r, 0, {.loss = 4.4, .grad_norm = 2});
  d.add_step(r, 1, {.loss = 0.6, .grad_norm = 0.7});
  const auto all = pieces(values, {{0, 4, nullptr}});
  d.add_tensors(r, all, all);
  EXPECT_NEAR(d.losses[0], 0.1, 1e-15) << "relative to 4";
  EXPECT_NEAR(d.losses[1], 0.1, 1e-15) << "relative to 1";
  EXPECT_NEAR(d.norms[1], 0.3, 1e-15);
  EXPECT_NEAR(d.tensors[0], 0.05, 1e-15);
  EXPECT_NEAR(d.tensors[1], 0.2, 1e-15);
  EXPECT_TRUE(d.badly_tiled(r).empty());
}

TEST(RunDistance, WhatIsNoNumberIsInfinitelyFar) {
  const RunRecord r = record();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> values = r.values;
  values[1] = nan;
  values[5] = INFINITY;
  RunDistance d(r);
  d.add_step(r, 0, {.loss = nan, .grad_norm = nan});
  d.add_step(r, 1, {.loss = 0.5, .grad_norm = 1, .updated = false});
  const auto all = pieces(values, {{0, 4, nullptr}});
  d.add_tensors(r, all, all);
  for (const double x : {d.losses[0], d.losses[1], d.norms[0], d.tensors[0], d.tensors[1]})
    EXPECT_EQ(x, INFINITY);
}

TEST(RunDistance, EveryElementIsOwnedOnce) {
  const RunRecord r = record();
  std::vector<double> values = r.values;
  const auto tiled = [&](const std::vector<std::vector<StoredPiece>>& ranks) {
    RunDistance sum(r);
    bool first = true;
    for (const auto& mine : ranks) {
      RunDistance d(r);
      auto tensors = pieces(values, mine);
      if (!std::exchange(first, false)) tensors[1].pieces.clear();
      d.add_tensors(r, tensors, tensors);
      for (std::size_t i = 0; i < d.tiling.size(); ++i)
        sum.tiling[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum.tiling[i]) +
                                                  static_cast<std::uint64_t>(d.tiling[i]));
    }
    return sum.badly_tiled(r).empty();
  };
  EXPECT_TRUE(tiled({{{0, 4, nullptr}}}));
  EXPECT_TRUE(tiled({{{2, 2, nullptr}}, {{0, 1, nullptr}, {1, 1, nullptr}}, {}}));
  EXPECT_FALSE(tiled({{{0, 3, nullptr}}})) << "one dropped";
  EXPECT_FALSE(tiled({{{0, 4, nullptr}}, {{3, 1, nullptr}}})) << "one twice";
  EXPECT_FALSE(tiled({{{0, 2, nullptr}}, {{0, 2, nullptr}}})) << "as many as there are, but others";
  EXPECT_FALSE(tiled({{}}));
}

TEST(RunDistance, OtherTensorsAreNoComparison) {
  const RunRecord r = record();
  std::vector<double> values = r.values;
  auto all = pieces(values, {{0, 4, nullptr}});
  RunDistance d(r);
  std::swap(all[0], all[1]);
  EXPECT_THROW(d.add_tensors(r, all, all), Error);
  all.pop_back();
  EXPECT_THROW(d.add_tensors(r, all, all), Error);
}

TEST(RunRecord, HoldsEverythingOfARun) {
  test::SingleRank single;
  test::EngineRun run(test::engine_options(test::tiny_gpt(), "fp64", 2), *single.mesh);
  RunRecord record;
  for (int i = 0; i < 2; ++i) {
    const StepResult result = run.step();
    record.losses.push_back(result.loss);
    record.norms.push_back(result.grad_norm);
  }
  record.take(run.engine());
  const auto& parameters = run.engine().instance().parameters().parameters();
  ASSERT_EQ(record.tensors.size(), 4 * parameters.size()) << "two moments and the gradient";
  EXPECT_EQ(record.values.size(),
            4 * static_cast<std::size_t>(run.engine().instance().parameters().count()));
  const std::vector<double> state = run.state(), gradients = run.gradients();
  std::size_t at = 0, gradient = 0;
  for (const RunRecord::Tensor& t : record.tensors)
    for (std::int64_t i = 0; i < t.count; ++i) {
      const bool is_gradient = quantity_of(t) == Quantity::gradient;
      ASSERT_EQ(record.values[static_cast<std::size_t>(t.first + i)],
                is_gradient ? gradients[gradient++] : state[at++])
          << t.name << " " << i;
    }
  const RunDistance itself = distance_of(record, record);
  for (const auto& list : {itself.losses, itself.norms, itself.tensors})
    for (const double d : list) EXPECT_EQ(d, 0);
  RunDistance d(record);
  d.add_tensors(record, held_tensors(run.engine()), owned_tensors(run.engine()));
  EXPECT_TRUE(d.badly_tiled(record).empty());
}

TEST(SyntheticTokens, AreAFunctionOfTheSampleAndRagged) {
  SyntheticTokens ones(7, 1, 12, 61), threes(7, 3, 12, 61);
  std::int64_t counted = 0, none = 0, whole = 0;
  for (std::int64_t m = 0; m < 40; ++m) {
    const ModelBatch batch = threes.micro_batch(m);
    ASSERT_EQ(batch.first_sample, 3 * m);
    for (std::int64_t row = 0; row < 3; ++row) {
      const ModelBatch one = ones.micro_batch(3 * m + row);
      std::int64_t valid = 0;
      for (std::int64_t t = 0; t < 12; ++t) {
        const std::int32_t input = batch["inputs"].as<std::int32_t>()[12 * row + t];
        const std::int32_t target = batch["targets"].as<std::int32_t>()[12 * row + t];
        EXPECT_EQ(input, one["inputs"].as<std::int32_t>()[t]);
        EXPECT_EQ(target, one["targets"].as<std::int32_t>()[t]);
        EXPECT_TRUE(input >= 0 && input < 61 && target >= -1 && target < 61);
        if (target >= 0) ++valid;
      }
      EXPECT_EQ(valid, ones.valid(3 * m + row, 1));
      counted += valid, none += valid == 0, whole += valid == 12;
    }
  }
  EXPECT_EQ(counted, threes.valid(0, 120));
  EXPECT_GT(none, 0) << "samples that do not count";
  EXPECT_GT(whole, 0);
}

}  // namespace
}  // namespace choir
