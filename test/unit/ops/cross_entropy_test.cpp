#include "choir/ops/cross_entropy.hpp"

#include "kernels/cross_entropy.hpp"
#include "test/support/gradcheck.hpp"

namespace choir {
namespace {

ops::CrossEntropy make(const HostTensor& logits, const HostTensor& targets,
                       const HostTensor& losses, std::int64_t vocabulary, double scale) {
  ops::CrossEntropy c;
  c.logits = logits, c.targets = targets, c.losses = losses, c.vocabulary = vocabulary,
  c.scale = scale;
  return c;
}

void check(DType dtype, std::int64_t rows, std::int64_t vocabulary, std::int64_t padding,
           double spread) {
  SCOPED_TRACE(
      fmt::format("{} [{}, {} + {}] spread {}", name_of(dtype), rows, vocabulary, padding, spread));
  CpuBench cpu;
  const Shape shape{rows, vocabulary + padding};
  HostTensor logits = HostTensor::normal(dtype, shape, 1, spread);
  for (std::int64_t r = 0; r < rows; ++r)  // padding must not be looked at
    for (std::int64_t c = vocabulary; c < vocabulary + padding; ++c)
      logits.set(r * shape[1] + c, c % 2 ? 1e30 : NAN);
  HostTensor targets = HostTensor::integers({rows}, 2, vocabulary);
  if (rows > 2) targets.set(1, -1);
  targets.set(0, static_cast<double>(vocabulary - 1));
  HostTensor losses(sum_dtype(dtype), {rows}), exact = logits.to(DType::f64),
                                               exact_losses(DType::f64, {rows});
  ops::cross_entropy(cpu.stream, make(logits, targets, losses, vocabulary, 0.25));
  ref::cross_entropy(make(exact, targets, exact_losses, vocabulary, 0.25));
  // z - max is exact to half an ulp of up to 10 spread, exp 2 ulp, per-lane sums of at most 4096 /
  // 8 terms (two accumulators of at least four lanes): relative error of the sum.
  const double u = unit_roundoff(sum_dtype(dtype));
  const double relative =
      (10 * spread + 4 + std::min<double>(static_cast<double>(vocabulary), 4096) / 8 + 8) * u;
  expect_close(losses, exact_losses, 2 * u, relative, "losses");
  const double store = unit_roundoff(dtype);
  for (std::int64_t r = 0; r < rows;
       ++r) {  // at the target p - 1 cancels: an error relative to p <= 1
    if (targets[r] < 0) continue;
    const auto at = static_cast<std::int64_t>(static_cast<double>(r * shape[1]) + targets[r]);
    EXPECT_NEAR(logits[at], exact[at],
                0.25 * relative + store * std::fabs(exact[at]) + underflow_roundoff(dtype));
    logits.set(at, 0), exact.set(at, 0);
  }
  expect_close(logits, exact, store + relative, std::max(1e-38, underflow_roundoff(dtype)),
               "gradient");
  EXPECT_TRUE(logits.guard_intact() && losses.guard_intact());
}

// The scalar in device memory multiplies the gradient, and the loss not at all.
TEST(CrossEntropy, PartOfTheScaleMayComeFromTheDevice) {
  CpuBench cpu;
  const HostTensor start = HostTensor::normal(DType::f32, {4, 17}, 1),
                   targets = HostTensor::integers({4}, 2, 17);
  HostTensor told = start, read = start, reference = start.to(DType::f64);
  HostTensor losses(DType::f32, {4}), same(DType::f32, {4}), exact(DType::f64, {4});
  ops::cross_entropy(cpu.stream, make(told, targets, losses, 17, 0.25 * 1024));
  double on_device = 1;
  auto args = make(read, targets, same, 17, 0.25);
  args.device_scale = &on_device;
  on_device = 1024;  // after the arguments were made
  ops::cross_entropy(cpu.stream, args);
  EXPECT_TRUE(read.same_bits(told));
  EXPECT_TRUE(same.same_bits(losses));
  args.logits = reference, args.losses = exact;
  ref::cross_entropy(args);
  // Numbers up to 256, some twenty roundings each.
  expect_close(read, reference, 0, 256 * 20 * 0x1p-24, "gradient");
}

TEST(CrossEntropy, MatchesTheReference) {
  for (const DType dtype : kElementTypes)
    for (const std::int64_t vocabulary : {1, 2, 7, 16, 65, 1000, 4096, 4097, 9001})
      for (const std::int64_t rows : {1, 5})
        for (const std::int64_t padding : {0, 3, 63}) check(dtype, rows, vocabulary, padding, 2);
  for (const DType dtype : {DType::f64, DType::f32}) check(dtype, 40, 50257, 47, 3);
}

TEST(CrossEntropy, ExtremeLogitsAreExact) {
  for (const DType dtype : kElementTypes) {
    CpuBench cpu;
    HostTensor logits = HostTensor::filled(dtype, {2, 6000}, -1e4), losses(sum_dtype(dtype), {2});
    HostTensor targets(DType::i32, {2});
    targets.set(0, 5000), targets.set(1, 17);
    logits.set(5000, 1e4), logits.set(6000 + 5000, 1e4);
    const double gap = logits[5000] - logits[0];
    ops::cross_entropy(cpu.stream, make(logits, targets, losses, 6000, 1));
    EXPECT_EQ(losses[0], 0);
    EXPECT_EQ(losses[1], gap);  // 2e4 as the type holds it
    EXPECT_EQ(logits[5000], 0);
    EXPECT_EQ(logits[6000 + 17], -1);
    EXPECT_EQ(logits[6000 + 5000], 1);
    EXPECT_EQ(logits[3], 0);
  }
}

TEST(CrossEntropy, UniformLogitsGiveLogOfTheVocabulary) {
  CpuBench cpu;
  HostTensor logits = HostTensor::filled(DType::f64, {3, 65}, 0.5), losses(DType::f64, {3});
  const HostTensor targets = HostTensor::integers({3}, 1, 65);
  auto args = make(logits, targets, losses, 65, 1);
  args.write_gradient = false;
  ops::cross_entropy(cpu.stream, args);
  for (int r = 0; r < 3; ++r) EXPECT_NEAR(losses[r], std::log(65.0), 1e-15 * 65);
  for (int i = 0; i < 3 * 65; ++i) ASSERT_EQ(logits[i], 0.5);
}

TEST(CrossEntropy, RowsWithoutTargetGiveZeroWhateverTheyHold) {
  CpuBench cpu;
  HostTensor logits(DType::f32, {2, 40}), losses(DType::f32, {2});  // NaN everywhere
  const HostTensor targets = HostTensor::filled(DType::i32, {2}, -1);
  ops::cross_entropy(cpu.stream, make(logits, targets, losses, 33, 1));
  for (int r = 0; r < 2; ++r) EXPECT_EQ(losses[r], 0);
  for (int i = 0; i < 80; ++i) ASSERT_EQ(logits[i], 0);
}

TEST(CrossEntropy, MaskedLogitsAreFineAndNanIsNotHidden) {
  CpuBench cpu;
  HostTensor logits = HostTensor::filled(DType::f32, {2, 9000}, -INFINITY), losses(DType::f32, {2});
  const HostTensor targets = HostTensor::filled(DType::i32, {2}, 8500);
  logits.set(8500, 1), logits.set(8600, 1);
  logits.set(9000 + 8500, 1), logits.set(9000 + 3, NAN);
  ops::cross_entropy(cpu.stream, make(logits, targets, losses, 9000, 1));
  EXPECT_NEAR(losses[0], std::log(2.0), 1e-7);
  EXPECT_EQ(logits[8600], 0.5);
  EXPECT_TRUE(std::isnan(losses[1]));
}

TEST(CrossEntropy, GradientAgreesWithFiniteDifferences) {
  CpuBench cpu;
  HostTensor logits = HostTensor::normal(DType::f64, {4, 21}, 1), losses(DType::f64, {4});
  HostTensor targets = HostTensor::integers({4}, 2, 19);
  targets.set(2, -1);
  const auto loss = [&] {
    auto args = make(logits, targets, losses, 19, 0.3);
    args.write_gradient = false;
    ops::cross_entropy(cpu.stream, args);
    return 0.3 * (losses[0] + losses[1] + losses[2] + losses[3]);
  };
  HostTensor gradient = logits;
  ops::cross_entropy(cpu.stream, make(gradient, targets, losses, 19, 0.3));
  expect_gradient(gradient, logits, loss, "cross-entropy");
  expect_directional(gradient, logits, 3, loss, "cross-entropy");
}

TEST(CrossEntropy, RefusesATargetBeyondTheVocabulary) {
  CpuBench cpu;
  const HostTensor logits(DType::f32, {2, 8}), losses(DType::f32, {2});
  const HostTensor targets = HostTensor::filled(DType::i32, {2}, 7);
  EXPECT_THROW(ops::cross_entropy(cpu.stream, make(logits, targets, losses, 7, 1)), Error);
}

}  // namespace
}  // namespace choir
