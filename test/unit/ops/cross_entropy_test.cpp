#include "kernels/cross_entropy/cross_entropy.hpp"

#include "test/support/cross_entropy_case.hpp"
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
           double spread, double smoothing = 0) {
  CpuDevice cpu;
  const test::CrossEntropyCase rows_of(dtype, rows, vocabulary, padding, spread, smoothing);
  rows_of.check(cpu, test::CrossEntropyErrors::cpu(vocabulary));
}

// The scalar in device memory multiplies the gradient, but not the loss.
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
  // Numbers up to 256, with some twenty roundings each.
  expect_close(read, reference, 0, 256 * 20 * 0x1p-24, "gradient");
}

TEST(CrossEntropy, MatchesTheReference) {
  for (const DType dtype : kElementTypes)
    for (const std::int64_t vocabulary : {1, 2, 7, 16, 65, 1000, 4096, 4097, 9001})
      for (const std::int64_t rows : {1, 5})
        for (const std::int64_t padding : {0, 3, 63}) check(dtype, rows, vocabulary, padding, 2);
  for (const DType dtype : {DType::f64, DType::f32}) check(dtype, 40, 50257, 47, 3);
}

TEST(CrossEntropy, SmoothsLabels) {
  for (const DType dtype : kElementTypes)
    for (const std::int64_t vocabulary : {1, 7, 65, 4097})
      for (const double smoothing : {0.1, 0.9}) check(dtype, 5, vocabulary, 3, 2, smoothing);
}

TEST(CrossEntropy, AddsTheSquareOfTheLogSum) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t vocabulary : {2, 65, 4097})
      for (const double smoothing : {0.0, 0.1})
        for (const bool weighted : {false, true}) {
          const test::CrossEntropyCase c(dtype, 5, vocabulary, 3, 2, smoothing, weighted, 0.03);
          c.check(cpu, test::CrossEntropyErrors::cpu(vocabulary));
          for (const int ranks : {2, 3})
            c.check_parallel(cpu, ranks, test::CrossEntropyErrors::cpu(vocabulary));
        }
}

TEST(CrossEntropy, MapsLogits) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t vocabulary : {2, 65, 4097})
      for (const ops::LogitMap map :
           {ops::LogitMap{.softcap = 3}, {.scale = 0.25}, {.scale = 1.5, .softcap = 4}}) {
        const test::CrossEntropyCase c(dtype, 5, vocabulary, 3, 2, 0.1, true, 0.01, map);
        c.check(cpu, test::CrossEntropyErrors::cpu(vocabulary));
        for (const int ranks : {2, 3})
          c.check_parallel(cpu, ranks, test::CrossEntropyErrors::cpu(vocabulary));
      }
}

// 30 tanh(60 / 30) = 30 tanh 2.
TEST(CrossEntropy, ASoftCapInClosedForm) {
  CpuBench cpu;
  const double capped = 30 * 0.964027580075817;
  HostTensor logits = HostTensor::filled(DType::f64, {1, 2}, 0), losses(DType::f64, {1});
  HostTensor targets(DType::i32, {1});
  logits.set(0, 60), targets.set(0, 1);
  auto args = make(logits, targets, losses, 2, 1);
  args.map = {.softcap = 30};
  ops::cross_entropy(cpu.stream, args);
  EXPECT_NEAR(losses[0], capped + std::log1p(std::exp(-capped)), 1e-12);
  EXPECT_NEAR(logits[0], 1 - 0.964027580075817 * 0.964027580075817, 1e-12);
  EXPECT_NEAR(logits[1], -1, 1e-12);
  HostTensor alone = HostTensor::filled(DType::f64, {1, 2}, 60);
  alone.set(1, -INFINITY);
  ops::map_logits(cpu.stream, args.map, alone);
  EXPECT_NEAR(alone[0], capped, 1e-12);
  EXPECT_EQ(alone[1], -INFINITY);
}

TEST(CrossEntropy, GradientWithZLossAgreesWithFiniteDifferences) {
  CpuBench cpu;
  constexpr double kZ = 0.07;
  HostTensor logits = HostTensor::normal(DType::f64, {3, 9}, 4), losses(DType::f64, {3});
  HostTensor z_losses(DType::f64, {3}), weights(DType::f32, {3});
  const HostTensor targets = HostTensor::integers({3}, 3, 7);
  for (int r = 0; r < 3; ++r) weights.set(r, 0.5 * (r + 1));
  const auto run = [&](const HostTensor& z, bool gradient) {
    auto args = make(z, targets, losses, 7, 0.3);
    args.label_smoothing = 0.1, args.weights = weights, args.write_gradient = gradient;
    args.z_loss = kZ, args.z_losses = z_losses, args.map = {.scale = 1.3, .softcap = 1.5};
    ops::cross_entropy(cpu.stream, args);
    double sum = 0;
    for (int r = 0; r < 3; ++r) sum += losses[r] + kZ * z_losses[r];
    return 0.3 * sum;
  };
  HostTensor gradient = logits;
  run(gradient, true);
  expect_gradient(
      gradient, logits, [&] { return run(logits, false); }, "logits");
}

// The mean over the vocabulary must be that of all ranks, and so must V: uniform logits give log V
// for any smoothing; the other logits have a closed form.
TEST(CrossEntropy, SmoothingOfOneLargeLogitInClosedForm) {
  CpuBench cpu;
  HostTensor logits = HostTensor::filled(DType::f64, {2, 10}, 0), losses(DType::f64, {2});
  HostTensor targets(DType::i32, {2});
  targets.set(0, 3), targets.set(1, 4);
  for (int r = 0; r < 2; ++r) logits.set(10 * r + 3, std::log(11.0));  // p = 11/20, the rest 1/20
  auto args = make(logits, targets, losses, 10, 1);
  args.label_smoothing = 0.2;
  ops::cross_entropy(cpu.stream, args);
  const double hit = std::log(20.0 / 11), miss = std::log(20.0);
  EXPECT_NEAR(losses[0], 0.82 * hit + 0.18 * miss, 1e-15 * 8);
  EXPECT_NEAR(losses[1], 0.82 * miss + 0.02 * hit + 0.16 * miss, 1e-15 * 8);
  EXPECT_NEAR(logits[3], 0.55 - 0.82, 1e-15 * 4);
  EXPECT_NEAR(logits[10 + 3], 0.55 - 0.02, 1e-15 * 4);
  EXPECT_NEAR(logits[0], 0.05 - 0.02, 1e-15 * 4);
}

TEST(ParallelCrossEntropy, MatchesTheReferenceOfTheWholeVocabulary) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t vocabulary : {1, 7, 65, 997})
      for (const std::int64_t padding : {0, 13})
        for (const double smoothing : {0.0, 0.1})
          for (const int ranks : {1, 2, 3, 5})
            test::CrossEntropyCase(dtype, 5, vocabulary, padding, 2, smoothing)
                .check_parallel(cpu, ranks, test::CrossEntropyErrors::cpu(vocabulary));
}

// Two faults known from other programs, introduced on purpose: label smoothing that divides by the
// columns of one rank, and padding that is included. The losses show both.
TEST(ParallelCrossEntropy, LocalSmoothingAndCountedPaddingAreSeen) {
  CpuBench cpu;
  constexpr std::int64_t kRows = 3, kWide = 8;  // 13 of 16 columns count
  const HostTensor targets = HostTensor::integers({kRows}, 3, 13);
  const auto loss = [&](std::int64_t vocabulary, double smoothing) {
    std::vector<HostTensor> logits, losses, own, largest, sums;
    for (int i = 0; i < 2; ++i) {
      logits.push_back(HostTensor::normal(DType::f64, {kRows, kWide}, 1 + i));
      losses.emplace_back(DType::f64, Shape{kRows});
      own.emplace_back(DType::f64, Shape{kRows});
      largest.emplace_back(DType::f64, Shape{kRows});
      sums.emplace_back(DType::f64, Shape{kRows, smoothing > 0 ? 3 : 2});
    }
    const auto call = [&](auto op) {
      for (std::size_t i = 0; i < 2; ++i) {
        ops::ParallelCrossEntropy c;
        c.logits = logits[i], c.targets = targets, c.losses = losses[i];
        c.vocabulary = vocabulary, c.first_column = static_cast<std::int64_t>(i) * kWide;
        c.label_smoothing = smoothing, c.write_gradient = false;
        c.local_maxima = own[i], c.maxima = largest[i], c.sums = sums[i];
        op(cpu.stream, c);
      }
    };
    const auto join = [](std::vector<HostTensor>& parts, auto f) {
      for (std::int64_t i = 0; i < parts[0].count(); ++i) {
        const double both = f(parts[0][i], parts[1][i]);
        parts[0].set(i, both), parts[1].set(i, both);
      }
    };
    call(ops::cross_entropy_maxima);
    join(largest, [](double a, double b) { return std::max(a, b); });
    call(ops::cross_entropy_sums);
    join(sums, [](double a, double b) { return a + b; });
    call(ops::cross_entropy_finish);
    return losses[0][0] + losses[0][1] + losses[0][2];
  };
  // The expected loss from whole rows, by the definition.
  const auto exact = [&](double smoothing) {
    HostTensor rows(DType::f64, {kRows, 13}), losses(DType::f64, {kRows});
    for (int i = 0; i < 2; ++i) {
      const HostTensor part = HostTensor::normal(DType::f64, {kRows, kWide}, 1 + i);
      for (std::int64_t r = 0; r < kRows; ++r)
        for (std::int64_t c = 0; c < kWide && i * kWide + c < 13; ++c)
          rows.set(r * 13 + i * kWide + c, part[r * kWide + c]);
    }
    ops::CrossEntropy c;
    c.logits = rows, c.targets = targets, c.losses = losses;
    c.vocabulary = 13, c.label_smoothing = smoothing;
    ref::cross_entropy(c);
    return losses[0] + losses[1] + losses[2];
  };
  for (const double smoothing : {0.0, 0.1})
    EXPECT_NEAR(loss(13, smoothing), exact(smoothing), 1e-12);
  EXPECT_GT(std::abs(loss(16, 0) - exact(0)), 1e-3) << "padding is counted";
  // Smoothing each column by e / 8 instead of e / 13 is smoothing of another strength.
  EXPECT_GT(std::abs(loss(13, 0.1 * 13 / 8) - exact(0.1)), 1e-3) << "smoothing is local";
}

TEST(ParallelCrossEntropy, GradientAgreesWithFiniteDifferences) {
  CpuBench cpu;
  constexpr std::int64_t kRows = 3, kWide = 7;
  HostTensor logits[2] = {HostTensor::normal(DType::f64, {kRows, kWide}, 1),
                          HostTensor::normal(DType::f64, {kRows, kWide}, 2)};
  const HostTensor targets = HostTensor::integers({kRows}, 3, 12);  // 2 of 14 columns are padding
  // Returns the loss, and the gradient in copies of the logits.
  const auto run = [&](HostTensor& first, HostTensor& second, bool gradient) {
    HostTensor losses(DType::f64, {kRows}), maxima(DType::f64, {kRows}), own[2] = {maxima, maxima};
    HostTensor largest[2] = {maxima, maxima}, sums(DType::f64, {kRows, 3}), all[2] = {sums, sums};
    ops::ParallelCrossEntropy c[2];
    for (int i = 0; i < 2; ++i) {
      c[i].logits = i == 0 ? first : second, c[i].targets = targets, c[i].losses = losses;
      c[i].vocabulary = 12, c[i].first_column = i * kWide, c[i].label_smoothing = 0.1;
      c[i].local_maxima = own[i], c[i].maxima = largest[i], c[i].sums = all[i];
      c[i].scale = 0.3, c[i].write_gradient = gradient;
      ops::cross_entropy_maxima(cpu.stream, c[i]);
    }
    for (int r = 0; r < kRows; ++r) {
      const double max = std::max(largest[0][r], largest[1][r]);
      largest[0].set(r, max), largest[1].set(r, max);
    }
    for (const auto& args : c) ops::cross_entropy_sums(cpu.stream, args);
    for (int i = 0; i < 3 * kRows; ++i) {
      const double sum = all[0][i] + all[1][i];
      all[0].set(i, sum), all[1].set(i, sum);
    }
    for (const auto& args : c) ops::cross_entropy_finish(cpu.stream, args);
    return 0.3 * (losses[0] + losses[1] + losses[2]);
  };
  HostTensor gradient[2] = {logits[0], logits[1]};
  run(gradient[0], gradient[1], true);
  const auto loss = [&] { return run(logits[0], logits[1], false); };
  expect_gradient(gradient[0], logits[0], loss, "columns of the first rank");
  expect_gradient(gradient[1], logits[1], loss, "columns of the second rank");
  expect_directional(gradient[0], logits[0], 3, loss, "columns of the first rank");
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
    EXPECT_EQ(losses[1], gap);  // 2e4, rounded to the type
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

TEST(CrossEntropy, RowsHaveWeights) {
  CpuBench cpu;
  CpuDevice device;
  HostTensor logits(DType::f64, {4, 4}), losses(DType::f64, {4}), targets(DType::i32, {4});
  HostTensor weights(DType::f32, {4});
  const double rows[4][4] = {{0, 1, 2, 3}, {1, 0, 0, -1}, {2, 2, 2, 2}, {0, 0, 5, 0}};
  const double of[4] = {0.3, 1, 1, 0};
  const std::int32_t ids[4] = {3, 0, 1, 2};
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c) logits.set(4 * r + c, rows[r][c]);
    weights.set(r, of[r]), targets.set(r, ids[r]);
  }
  logits.set(15, NAN);  // in a row without weight
  auto args = make(logits, targets, losses, 4, 1);
  args.weights = weights;
  ops::cross_entropy(cpu.stream, args);
  const double u = 0x1p-24;  // rounding error of a weight
  EXPECT_NEAR(losses[0], 0.3 * 0.4401897, 1e-8);
  EXPECT_NEAR(losses[1], 0.62652338, 1e-8);
  EXPECT_NEAR(losses[0] + losses[1] + losses[2] + losses[3], 2.1448746457, 0.45 * u + 1e-10);
  EXPECT_EQ(losses[3], 0);
  const double gradient[4] = {.00961758, .0261433, .07106485, -.10682572};
  for (int c = 0; c < 4; ++c) {
    EXPECT_NEAR(logits[c], gradient[c], 2e-8);
    EXPECT_EQ(logits[12 + c], 0);
  }
  for (const DType dtype : kElementTypes)
    for (const std::int64_t vocabulary : {2, 65, 3001})
      for (const double smoothing : {0.0, 0.2}) {
        const test::CrossEntropyCase c(dtype, 6, vocabulary, 3, 2, smoothing, true);
        c.check(device, test::CrossEntropyErrors::cpu(vocabulary));
        c.check_parallel(device, 2, test::CrossEntropyErrors::cpu(vocabulary));
      }
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
  for (const double smoothing : {0.0, 0.2}) {
    const auto loss = [&] {
      auto args = make(logits, targets, losses, 19, 0.3);
      args.write_gradient = false, args.label_smoothing = smoothing;
      ops::cross_entropy(cpu.stream, args);
      return 0.3 * (losses[0] + losses[1] + losses[2] + losses[3]);
    };
    HostTensor gradient = logits;
    auto args = make(gradient, targets, losses, 19, 0.3);
    args.label_smoothing = smoothing;
    ops::cross_entropy(cpu.stream, args);
    expect_gradient(gradient, logits, loss, "cross-entropy");
    expect_directional(gradient, logits, 3, loss, "cross-entropy");
  }
}

TEST(CrossEntropy, RefusesATargetBeyondTheVocabulary) {
  CpuBench cpu;
  const HostTensor logits(DType::f32, {2, 8}), losses(DType::f32, {2});
  const HostTensor targets = HostTensor::filled(DType::i32, {2}, 7);
  EXPECT_THROW(ops::cross_entropy(cpu.stream, make(logits, targets, losses, 7, 1)), Error);
  auto smooth = make(logits, targets, losses, 8, 1);
  smooth.label_smoothing = 1;
  EXPECT_THROW(ops::cross_entropy(cpu.stream, smooth), Error);
}

}  // namespace
}  // namespace choir
