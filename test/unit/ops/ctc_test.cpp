#include "kernels/ctc/ctc.hpp"

#include <omp.h>

#include "src/device/null_device.hpp"
#include "test/support/ctc_case.hpp"
#include "test/support/gradcheck.hpp"
#include "test/unit/ops/ctc_golden.hpp"

namespace choir {
namespace {

using test::CtcCase;
using test::CtcErrors;

/// The golden utterances as one batch.
struct GoldenCtc {
  std::int64_t batch = static_cast<std::int64_t>(test::kCtcGolden.size()), most = 4;
  HostTensor logits{DType::f64, {batch * test::kGoldenFrames, test::kGoldenSymbols}},
      labels = HostTensor::filled(DType::i32, {batch, most}, -1), losses{DType::f64, {batch}};
  std::vector<std::int32_t> frames, counts;
  std::vector<unsigned char> workspace;

  GoldenCtc() {
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto& g = test::kCtcGolden[static_cast<std::size_t>(b)];
      frames.push_back(g.frames), counts.push_back(static_cast<std::int32_t>(g.labels.size()));
      for (std::size_t i = 0; i < g.labels.size(); ++i)
        labels.set(b * most + static_cast<std::int64_t>(i), g.labels[i]);
      for (std::int64_t t = 0; t < test::kGoldenFrames; ++t)
        for (std::int64_t c = 0; c < test::kGoldenSymbols; ++c)
          logits.set((b * test::kGoldenFrames + t) * test::kGoldenSymbols + c,
                     static_cast<double>(
                         (37 * (t + 1) + 11 * (c + 1) * (c + 2) + 53 * b + 7 * t * c) % 41) /
                             8 -
                         2.5);
    }
  }
  ops::Ctc arguments(const Stream& stream) {
    workspace.assign(static_cast<std::size_t>(ops::ctc_workspace(stream, batch, test::kGoldenFrames,
                                                                 most, test::kGoldenSymbols)),
                     0xFF);
    ops::Ctc c;
    c.logits = logits, c.labels = labels, c.losses = losses;
    c.frame_lengths = frames.data(), c.label_lengths = counts.data();
    c.vocabulary = test::kGoldenSymbols;
    c.workspace = {workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.size())}};
    return c;
  }
  double gradient(std::int64_t b, std::int64_t i) const {
    return logits[b * test::kGoldenFrames * test::kGoldenSymbols + i];
  }
  void expect() const {
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto& g = test::kCtcGolden[static_cast<std::size_t>(b)];
      EXPECT_NEAR(losses[b], g.loss, 1e-13) << "utterance " << b;
      for (std::int64_t i = 0; i < test::kGoldenFrames * test::kGoldenSymbols; ++i)
        EXPECT_NEAR(gradient(b, i),
                    i < static_cast<std::int64_t>(g.gradient.size())
                        ? g.gradient[static_cast<std::size_t>(i)]
                        : 0,
                    1e-13)
            << "utterance " << b << " element " << i;
    }
  }
};

TEST(Ctc, AgreesWithPyTorch) {
  CpuBench cpu;
  GoldenCtc twin, reference;
  ops::ctc(cpu.stream, twin.arguments(cpu.stream));
  twin.expect();
  ref::ctc(reference.arguments(cpu.stream));
  reference.expect();
}

TEST(Ctc, WithoutZeroInfinityTheImpossibleIsInfiniteAndItsGradientNoNumber) {
  CpuBench cpu;
  GoldenCtc golden;
  auto args = golden.arguments(cpu.stream);
  args.zero_infinity = false;
  ops::ctc(cpu.stream, args);
  for (std::int64_t b = 0; b < golden.batch; ++b) {
    const auto& g = test::kCtcGolden[static_cast<std::size_t>(b)];
    EXPECT_EQ(std::isinf(golden.losses[b]), g.impossible);
    EXPECT_EQ(std::isnan(golden.gradient(b, 0)), g.impossible);
    for (std::int64_t i = g.frames * test::kGoldenSymbols;
         i < test::kGoldenFrames * test::kGoldenSymbols; ++i)
      EXPECT_EQ(golden.gradient(b, i), 0);
  }
}

/// -ln of the sum over all paths that collapse to the labels, by trying every path.
double enumerated(const GoldenCtc& golden, std::int64_t b) {
  const auto& g = test::kCtcGolden[static_cast<std::size_t>(b)];
  const std::int64_t v = test::kGoldenSymbols;
  std::int64_t paths = 1;
  for (int t = 0; t < g.frames; ++t) paths *= v;
  double sum = 0;
  for (std::int64_t path = 0; path < paths; ++path) {
    std::vector<std::int32_t> text;
    std::int64_t rest = path, before = -1;
    double p = 1;
    for (std::int64_t t = 0; t < g.frames; ++t, rest /= v) {
      const std::int64_t symbol = rest % v;
      double exps = 0;
      for (std::int64_t c = 0; c < v; ++c)
        exps += std::exp(golden.logits[(b * test::kGoldenFrames + t) * v + c]);
      p *= std::exp(golden.logits[(b * test::kGoldenFrames + t) * v + symbol]) / exps;
      if (symbol != before && symbol != v - 1) text.push_back(static_cast<std::int32_t>(symbol));
      before = symbol;
    }
    if (text == g.labels) sum += p;
  }
  return -std::log(sum);
}

TEST(Ctc, IsTheSumOverAllPaths) {
  CpuBench cpu;
  GoldenCtc golden;
  auto args = golden.arguments(cpu.stream);
  args.write_gradient = false, args.zero_infinity = false;
  ops::ctc(cpu.stream, args);
  for (std::int64_t b = 0; b < golden.batch; ++b) {
    const double all = enumerated(golden, b);
    if (std::isinf(all))
      EXPECT_EQ(golden.losses[b], all);
    else
      EXPECT_NEAR(golden.losses[b], all, 1e-12);
  }
}

TEST(Ctc, MatchesTheReference) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes) {
    for (const std::int64_t vocabulary : {2, 5, 29, 257})
      for (const std::int64_t padding : {0, 3})
        CtcCase(dtype, 6, 25, 9, vocabulary, padding, 1).check(cpu, CtcErrors::cpu(vocabulary));
    CtcCase(dtype, 1, 40, 20, 30, 2, 2).check(cpu, CtcErrors::cpu(30));
    CtcCase(dtype, 40, 12, 6, 1025, 0, 1).check(cpu, CtcErrors::cpu(1025));
    CtcCase(dtype, 5, 9, 0, 11, 1, 1).check(cpu, CtcErrors::cpu(11));  // no labels at all
    CtcCase(dtype, 5, 9, 3, 1, 1, 1).check(cpu, CtcErrors::cpu(1));    // only the blank
    CtcCase(dtype, 3, 90, 40, 9, 0, 1).check(cpu, CtcErrors::cpu(9));
  }
}

// Without rescaling, numbers near 6e3 would be rounded in every frame: errors of 3e-4 each.
TEST(Ctc, LongUtterancesKeepTheirAccuracy) {
  CpuDevice cpu;
  const CtcCase c(DType::f32, 1, 1500, 200, 60, 0, 1);
  HostTensor gradient = c.logits, losses(DType::f32, {1}), exact, exact_losses;
  c.run(cpu, gradient, losses, c.arguments());
  c.reference(exact, exact_losses);
  EXPECT_NEAR(losses[0], exact_losses[0], 2e-6 * exact_losses[0]);
  double worst = 0;
  for (std::int64_t i = 0; i < exact.count(); ++i)
    worst = std::max(worst, std::fabs(gradient[i] - exact[i]));
  EXPECT_LT(worst, CtcCase::kScale * 1e-4);
}

TEST(Ctc, GradientAgreesWithFiniteDifferences) {
  CpuDevice cpu;
  CtcCase c(DType::f64, 6, 8, 3, 6, 0, 1);
  HostTensor losses(DType::f64, {c.batch}), gradient = c.logits;
  c.run(cpu, gradient, losses, c.arguments());
  const auto loss = [&] {
    HostTensor z = c.logits, each(DType::f64, {c.batch});
    ops::Ctc args = c.arguments();
    args.write_gradient = false;
    c.run(cpu, z, each, args);
    double sum = 0;
    for (std::int64_t b = 0; b < c.batch; ++b) sum += CtcCase::kScale * each[b];
    return sum;
  };
  expect_gradient(gradient, c.logits, loss, "ctc");
  for (std::int64_t i = 0; i < c.logits.count(); ++i)
    if (std::isnan(c.logits[i])) c.logits.set(i, 0);
  expect_directional(gradient, c.logits, 3, loss, "ctc");
}

TEST(Ctc, AnUtteranceDoesNotDependOnItsPaddingOrPlace) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes) {
    CtcCase(dtype, 6, 30, 11, 37, 5, 1).check_padding(cpu);
    CtcCase(dtype, 4 * omp_get_max_threads(), 19, 7, 130, 1, 1).check_padding(cpu);
  }
}

// A scale on the host and one on the device multiply the gradient, but not the loss.
TEST(Ctc, PartOfTheScaleMayComeFromTheDevice) {
  CpuDevice cpu;
  const CtcCase c(DType::f32, 6, 20, 7, 33, 0, 1);
  HostTensor told = c.logits, read = c.logits, losses(DType::f32, {6}), same(DType::f32, {6});
  ops::Ctc args = c.arguments();
  args.scale = 0.25 * 1024;
  c.run(cpu, told, losses, args);
  double on_device = 1024;
  args.scale = 0.25, args.device_scale = &on_device;
  c.run(cpu, read, same, args);
  EXPECT_TRUE(read.same_bits(told));
  EXPECT_TRUE(same.same_bits(losses));
  HostTensor plain = c.logits;
  c.run(cpu, plain, same, c.arguments());
  for (std::int64_t i = 0; i < plain.count(); ++i) ASSERT_EQ(read[i], 1024 * plain[i]);
}

TEST(Ctc, MaskedSymbolsAreImpossibleAndNanIsNotHidden) {
  CpuBench cpu;
  GoldenCtc golden;
  golden.logits.set(0, -INFINITY);                        // one symbol of one frame: still possible
  for (std::int64_t t = 0; t < test::kGoldenFrames; ++t)  // no frame of utterance 5 has its 3
    golden.logits.set((5 * test::kGoldenFrames + t) * test::kGoldenSymbols + 3, -INFINITY);
  golden.logits.set(2 * test::kGoldenFrames * test::kGoldenSymbols + 1, NAN);
  ops::ctc(cpu.stream, golden.arguments(cpu.stream));
  EXPECT_TRUE(std::isfinite(golden.losses[0]));
  EXPECT_EQ(golden.gradient(0, 0), 0);
  EXPECT_EQ(golden.losses[5], 0);
  EXPECT_EQ(golden.gradient(5, 0), 0);
  EXPECT_TRUE(std::isnan(golden.losses[2]));
}

TEST(Ctc, RefusesLabelsAndLengthsBeyondTheirRange) {
  CpuBench cpu;
  const auto refused = [&](auto change) {
    GoldenCtc golden;
    ops::Ctc args = golden.arguments(cpu.stream);
    change(golden, args);
    EXPECT_THROW(ops::ctc(cpu.stream, args), Error);
  };
  refused([](GoldenCtc& g, ops::Ctc&) { g.labels.set(0, test::kGoldenSymbols - 1); });  // the blank
  refused([](GoldenCtc& g, ops::Ctc&) { g.labels.set(1, -1); });
  refused([](GoldenCtc& g, ops::Ctc&) { g.frames[0] = test::kGoldenFrames + 1; });
  refused([](GoldenCtc& g, ops::Ctc&) { g.counts[0] = 5; });
  refused([](GoldenCtc&, ops::Ctc& args) { args.workspace.shape = {64}; });
  refused([](GoldenCtc&, ops::Ctc& args) { args.vocabulary = 6; });
}

TEST(Ctc, TheNullDeviceOnlyCounts) {
  NullDevice device;
  WorkCounter work;
  const Stream stream(device, nullptr, &work);
  GoldenCtc golden;
  ops::ctc(stream, golden.arguments(stream));
  EXPECT_TRUE(std::isnan(golden.losses[0])) << "nothing was written";
  EXPECT_EQ(work.bytes, 2 * 8.0 * 8 * 7 * 5 + 4.0 * 8 * 4 + 8.0 * 8);
  EXPECT_GT(work.flops, 0);
}

TEST(BestSymbols, FirstOfTheLargestAndNeverPadding) {
  CpuBench cpu;
  for (const DType dtype : kElementTypes) {
    HostTensor logits = HostTensor::filled(dtype, {4, 70}, -3), best(DType::i32, {4});
    for (const int c : {40, 41, 63}) logits.set(c, 2);
    for (int r = 0; r < 4; ++r) logits.set(70 * r + 66, 9);  // padding
    logits.set(70 + 64, 1), logits.set(70 + 3, NAN);
    for (int c = 0; c < 70; ++c) logits.set(140 + c, -INFINITY);
    ops::best_symbols(cpu.stream, logits, 65, best);
    EXPECT_EQ(best[0], 40);
    EXPECT_EQ(best[1], 64);
    EXPECT_EQ(best[2], 0);
    EXPECT_EQ(best[3], 0);
  }
}

TEST(LogSoftmax, MatchesTheReferenceAndLeavesPadding) {
  CpuBench cpu;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t vocabulary : {1, 5, 65, 1025, 5000}) {
      HostTensor logits = HostTensor::normal(dtype, {3, vocabulary + 2}, 7);
      HostTensor exact = logits.to(DType::f64);
      ops::log_softmax(cpu.stream, logits, vocabulary);
      ref::log_softmax(exact, vocabulary);
      // Numbers up to 10 + ln V: two roundings and the error of the sum.
      const double u = unit_roundoff(sum_dtype(dtype));
      expect_close(logits, exact, unit_roundoff(dtype) + 2 * u,
                   u * (4 * 20 + CtcErrors::cpu(vocabulary).additions), "log_softmax");
    }
}

}  // namespace
}  // namespace choir
