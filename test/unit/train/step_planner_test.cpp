// Tests of the messages of a planned step against closed forms.
#include "src/train/step/step_planner.hpp"

#include <gtest/gtest.h>

#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

constexpr std::int64_t kMicroBatches = 3;

/// The parts of the gradient norm are sent, too, and the padding of buckets: less than this share.
constexpr double kRest = 0.01;

GptConfig gpt(std::int64_t layers) {
  return {.vocab_size = 128,
          .block_size = 8,
          .n_layer = layers,
          .n_head = 4,
          .n_kv_head = 4,
          .n_embd = 128,
          .ffn_width = 512};
}

CommTraffic planned(const EngineOptions& options, const Layout& layout, Axis axis) {
  return plan_step(options, layout, 0, layout.ranks(), false)
      .traffic[static_cast<std::size_t>(axis)];
}

TEST(StepPlanner, OneRankSendsNothing) {
  const StepPlan plan =
      plan_step(test::engine_options(gpt(2), "fp32", kMicroBatches), Layout(), 0, 1, false);
  for (const CommTraffic& axis : plan.traffic) {
    EXPECT_EQ(axis.calls, 0);
    EXPECT_EQ(axis.bytes, 0);
  }
}

// Gradients once per step, 4 N bytes, for any accumulation; and 8 bytes for the loss of each
// micro-batch of all ranks.
TEST(StepPlanner, DataParallelSendsTheGradientsOnce) {
  constexpr std::int64_t C = 128, F = 512, V = 128, T = 8, L = 2;
  constexpr std::int64_t block =
      2 * 2 * C + (3 * C * C + 3 * C) + (C * C + C) + (C * F + F) + (F * C + C);
  constexpr std::int64_t N = V * C + T * C + L * block + 2 * C;
  for (const int ranks : {2, 4}) {
    const CommTraffic data = planned(test::engine_options(gpt(L), "fp32", kMicroBatches),
                                     Layout(1, 1, ranks, 1), Axis::data);
    const double formula = 4.0 * N + 8.0 * kMicroBatches * ranks;
    EXPECT_GE(data.bytes, formula) << ranks;
    EXPECT_LE(data.bytes, (1 + kRest) * formula) << ranks;
  }
}

// Each additional layer needs 4 all-reduces of B T C floats per micro-batch: after attention and
// after the feed-forward layer, in both directions.
TEST(StepPlanner, TensorParallelSendsFourActivationsALayer) {
  for (const int ranks : {2, 4}) {
    const auto traffic = [&](std::int64_t layers) {
      return planned(test::engine_options(gpt(layers), "fp32", kMicroBatches),
                     Layout(ranks, 1, 1, 1), Axis::tensor);
    };
    constexpr double B = 2, T = 8, C = 128;
    const CommTraffic few = traffic(2), more = traffic(5);
    EXPECT_EQ(more.calls - few.calls, 3 * 4 * kMicroBatches) << ranks;
    constexpr double formula = 3 * 4 * kMicroBatches * B * T * C * 4;
    EXPECT_GE(more.bytes - few.bytes, formula) << ranks;
    EXPECT_LE(more.bytes - few.bytes, (1 + kRest) * formula) << ranks;
  }
}

}  // namespace
}  // namespace choir
