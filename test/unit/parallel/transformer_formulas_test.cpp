// Tests of the closed forms against the numbers of the papers that published them.
#include "test/support/transformer_formulas.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace choir {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kA100 = 312e12;

struct PaperModel {
  const char* name;
  TransformerShape shape;
  double micro_batch;
  int stages, chunks;
  double states, tensor, sequence, selective, both, full;  // GiB
  double batch, seconds, devices, utilisation;             // sequences, one step, A100s, %
};

// Korthikanti et al.: configurations of Table 3 (t = 8), memory as in Figure 1 (to all digits, as
// other models of it give them), time and model FLOPs utilisation of Table 5.
const PaperModel kPaper[] = {
    {"22B",
     {6144, 48, 64, 2048, 51200},
     4,
     1,
     1,
     45.5625,
     59.25,
     39.5625,
     29.25,
     9.5625,
     4.5,
     4,
     1.10,
     8,
     41.5},
    {"175B",
     {12288, 96, 96, 2048, 51200},
     1,
     8,
     3,
     45.5625,
     66.84375,
     41.4141,
     37.7812,
     12.3516,
     5.8125,
     64,
     13.75,
     64,
     51.4},
    {"530B",
     {20480, 105, 128, 2048, 51200},
     1,
     35,
     3,
     31.640625,
     114.0234,
     66.5137,
     70.5859,
     23.0762,
     10.8594,
     280,
     37.83,
     280,
     56.0},
    {"1T",
     {25600, 128, 160, 2048, 51200},
     1,
     64,
     1,
     32.958984,
     131.25,
     76.5625,
     81.25,
     26.5625,
     12.5,
     512,
     71.49,
     512,
     56.3},
};

/// Half of the last digit of a number with `digits` decimals.
double half_digit(int digits) {
  return 0.5 * std::pow(10.0, -digits) * (1 + 1e-9);
}

TEST(TransformerFormulas, ActivationsOfThePaper) {
  for (const PaperModel& model : kPaper) {
    const PipelineShape pipeline{model.stages, static_cast<int>(model.batch / model.micro_batch),
                                 model.chunks};
    const auto gib = [&](bool sequence, Recompute recompute) {
      return first_stage_activation_bytes(model.shape, {model.micro_batch, 8, sequence, recompute},
                                          ScheduleKind::interleaved, pipeline) /
             kGiB;
    };
    EXPECT_NEAR(gib(false, Recompute::none), model.tensor, half_digit(4)) << model.name;
    EXPECT_NEAR(gib(true, Recompute::none), model.sequence, half_digit(4)) << model.name;
    EXPECT_NEAR(gib(false, Recompute::selective), model.selective, half_digit(4)) << model.name;
    EXPECT_NEAR(gib(true, Recompute::selective), model.both, half_digit(4)) << model.name;
    EXPECT_NEAR(gib(false, Recompute::full), model.full, half_digit(4)) << model.name;
    EXPECT_NEAR(gib(true, Recompute::full), model.full / 8, half_digit(4)) << model.name;
    EXPECT_NEAR(layer_state_bytes(model.shape, 8, model.stages) / kGiB, model.states, half_digit(6))
        << model.name;
  }
}

// Fewer micro-batches than stages: only these are in flight. GPipe holds all.
TEST(TransformerFormulas, ActivationsFollowTheSchedule) {
  const TransformerShape shape = kPaper[3].shape;
  const ActivationSplit split{1, 8, true, Recompute::selective};
  const auto bytes = [&](ScheduleKind kind, int micro_batches) {
    return first_stage_activation_bytes(shape, split, kind, {64, micro_batches, 1}) / kGiB;
  };
  EXPECT_EQ(bytes(ScheduleKind::one_f_one_b, 512), 26.5625);
  EXPECT_EQ(bytes(ScheduleKind::one_f_one_b, 16), 26.5625 / 4);
  EXPECT_EQ(bytes(ScheduleKind::zb_h1, 512), 26.5625);
  EXPECT_EQ(bytes(ScheduleKind::gpipe, 512), 26.5625 * 8);
}

TEST(TransformerFormulas, EmbeddingAndOutput) {
  // 22B: s b h / t = 2048 * 4 * 6144 / 8 = 6 Mi; 1 + V / h = 28 / 3.
  const TransformerShape shape = kPaper[0].shape;
  const ActivationSplit split{4, 8, true, Recompute::none};
  EXPECT_EQ(embedding_activation_bytes(shape, split, 1), 6.0 * 1024 * 1024);
  EXPECT_EQ(embedding_activation_bytes(shape, split, 3), 18.0 * 1024 * 1024);
  EXPECT_DOUBLE_EQ(output_activation_bytes(shape, split), 4 * 6.0 * 1024 * 1024 * 28 / 3);
}

// Seconds are given to 0.01 and the utilisation to 0.1 %: both roundings bound the difference.
TEST(TransformerFormulas, UtilisationOfThePaper) {
  for (const PaperModel& model : kPaper) {
    const double flops = flops_per_token(FlopConvention::megatron, model.shape, 0) * model.batch *
                         model.shape.sequence;
    const double percent =
        100 * model_flops_utilisation(flops, model.seconds, model.devices, kA100);
    const double tolerance = half_digit(1) + percent * half_digit(2) / model.seconds;
    EXPECT_NEAR(percent, model.utilisation, tolerance) << model.name;
  }
}

// Megatron's closed form as printed, and as BioNeMo writes it per product.
TEST(TransformerFormulas, MegatronConvention) {
  for (const PaperModel& model : kPaper) {
    const auto& [h, L, a, s, V] = model.shape;
    const double flops = flops_per_token(FlopConvention::megatron, model.shape, 0);
    EXPECT_DOUBLE_EQ(flops, 72 * L * h * h * (1 + s / (6 * h) + V / (12 * L * h)));
    EXPECT_DOUBLE_EQ(flops * s, (24 * s * h * h + 4 * s * s * h) * 3 * L + 6 * s * h * V);
  }
}

// 12 layers of 768 over 1024 tokens: attention is 18 % of the total, halving it changes it by 9 %.
TEST(TransformerFormulas, ConventionsDiffer) {
  const TransformerShape shape{768, 12, 12, 1024, 65};
  const double parameters = 12.0 * 12 * 768 * 768 + 65 * 768;
  const double palm = flops_per_token(FlopConvention::palm, shape, parameters);
  const double causal = flops_per_token(FlopConvention::causal, shape, parameters);
  EXPECT_EQ(palm, 6 * parameters + 12.0 * 12 * 768 * 1024);
  EXPECT_EQ(palm - causal, 6.0 * 12 * 768 * 1024);
  EXPECT_NEAR((palm - 6 * parameters) / palm, 0.18, half_digit(2));
  EXPECT_NEAR((palm - causal) / palm, 0.09, half_digit(2));
  EXPECT_DOUBLE_EQ(model_flops_utilisation(3e12, 2, 5, 1e12), 0.3);
}

}  // namespace
}  // namespace choir
