// Product with the head, cross-entropy, smoothing and z-loss against numbers of another program.
#include "test/support/head_golden.hpp"
#include "test/support/cross_entropy_case.hpp"

namespace choir {
namespace {

using namespace test;

TEST(HeadGolden, LossAndGradientsOfRowsAndWeight) {
  CpuBench cpu;
  HostTensor targets(DType::i32, {kHeadRows});
  for (int r = 0; r < kHeadRows; ++r) targets.set(r, kHeadTargetIds[r]);
  for (const HeadGolden& golden : kHeadGoldens) {
    SCOPED_TRACE(fmt::format("smoothing {} z {}", golden.smoothing, golden.z));
    HostTensor logits(DType::f64, {kHeadRows, kHeadVocabulary}), losses(DType::f64, {kHeadRows});
    HostTensor z_losses(DType::f64, {kHeadRows});
    for (int r = 0; r < kHeadRows; ++r)
      for (int v = 0; v < kHeadVocabulary; ++v) {
        double sum = 0;
        for (int c = 0; c < kHeadWidth; ++c)
          sum += kHeadInput[r * kHeadWidth + c] * kHeadWeight[v * kHeadWidth + c];
        logits.set(r * kHeadVocabulary + v, sum);
      }
    ops::cross_entropy(cpu.stream, {.logits = logits,
                                    .targets = targets,
                                    .losses = losses,
                                    .vocabulary = kHeadVocabulary,
                                    .scale = 1.0 / kHeadTargets,
                                    .label_smoothing = golden.smoothing,
                                    .z_loss = golden.z,
                                    .z_losses = z_losses});
    double loss = 0;
    for (int r = 0; r < kHeadRows; ++r) loss += losses[r] + golden.z * z_losses[r];
    EXPECT_NEAR(loss / kHeadTargets, golden.loss, 1e-14);
    for (int r = 0; r < kHeadRows; ++r)
      for (int c = 0; c < kHeadWidth; ++c) {
        double sum = 0;
        for (int v = 0; v < kHeadVocabulary; ++v)
          sum += logits[r * kHeadVocabulary + v] * kHeadWeight[v * kHeadWidth + c];
        EXPECT_NEAR(sum, golden.d_input[r * kHeadWidth + c], 1e-14);
      }
    for (int v = 0; v < kHeadVocabulary; ++v)
      for (int c = 0; c < kHeadWidth; ++c) {
        double sum = 0;
        for (int r = 0; r < kHeadRows; ++r)
          sum += logits[r * kHeadVocabulary + v] * kHeadInput[r * kHeadWidth + c];
        EXPECT_NEAR(sum, golden.d_weight[v * kHeadWidth + c], 1e-14);
      }
  }
}

}  // namespace
}  // namespace choir
