// Moments in bf16: the rounding itself against golden vectors, its mean and its independence, and
// that the bits belong to an element of the model, not to its place on a rank.
#include <array>
#include <cmath>

#include "kernels/update/adamw.hpp"
#include "kernels/update/muon.hpp"
#include "kernels/update/random_rounding.hpp"
#include "test/support/op_test.hpp"

namespace choir {
namespace {

/// Random bits, and the results that an independent implementation of the rule has for them.
constexpr std::array<std::uint32_t, 4> kRoundingDraws{0x0000, 0x3fff, 0x8000, 0xffff};
struct GoldenRounding {
  std::uint32_t x;
  std::array<std::uint16_t, 4> rounded;
};
constexpr GoldenRounding kGoldenRoundings[] = {
    {0x3f800000, {0x3f80, 0x3f80, 0x3f80, 0x3f80}}, {0x3f808000, {0x3f80, 0x3f80, 0x3f81, 0x3f81}},
    {0x3f8020c5, {0x3f80, 0x3f80, 0x3f80, 0x3f81}}, {0xbf8020c5, {0xbf80, 0xbf80, 0xbf80, 0xbf81}},
    {0x40490fdb, {0x4049, 0x4049, 0x4049, 0x404a}}, {0x000116c2, {0x0001, 0x0001, 0x0001, 0x0002}},
    {0xc77fe000, {0xc77f, 0xc780, 0xc780, 0xc780}}, {0x7f7f0000, {0x7f7f, 0x7f7f, 0x7f7f, 0x7f7f}},
    {0x00000000, {0x0000, 0x0000, 0x0000, 0x0000}}, {0x80000000, {0x8000, 0x8000, 0x8000, 0x8000}},
    {0x7f800000, {0x7f80, 0x7f80, 0x7f80, 0x7f80}}, {0xff800000, {0xff80, 0xff80, 0xff80, 0xff80}}};

TEST(RandomRounding, GoldenVectors) {
  for (const GoldenRounding& golden : kGoldenRoundings)
    for (std::size_t d = 0; d < kRoundingDraws.size(); ++d) {
      const auto x = std::bit_cast<float>(golden.x);
      const std::uint32_t draw = kRoundingDraws[d];
      EXPECT_EQ(ref::round_at_random(x, draw).bits, golden.rounded[d]) << x << " " << draw;
      cpu::Floats all;
      for (unsigned lane = 0; lane < sizeof all / sizeof x; ++lane) all[lane] = x;
      for (const bool upper : {false, true}) {
        alignas(cpu::kVectorBytes) std::uint32_t words[sizeof(cpu::Floats) / sizeof(float)];
        for (std::uint32_t& word : words) word = upper ? draw << 16 | 0x5555 : draw | 0x55550000;
        const cpu::Floats rounded =
            upper ? cpu::round_by_upper(all, words) : cpu::round_at_random(all, words);
        for (unsigned lane = 0; lane < std::size(words); ++lane)
          EXPECT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(rounded[lane])),
                    std::uint32_t{golden.rounded[d]} << 16)
              << x << " " << draw << " " << upper;
      }
    }
  EXPECT_TRUE(std::isnan(static_cast<float>(ref::round_at_random(NAN, 0xffff))));
}

/// Parameters with bf16 moments. The corrections are 1, so that m / sqrt(v) is the step.
struct NarrowState {
  HostTensor master, gradient, m, v;
  ops::StepControl control{.learning_rate = 1e-2,
                           .apply = 1,
                           .gradient_factor = 0.5,
                           .correction1 = 1,
                           .correction2 = 1,
                           .updates = 7};
  explicit NarrowState(std::int64_t n, DType type = DType::f32)
      : master(HostTensor::normal(type, {n}, 1)),
        gradient(HostTensor::normal(DType::f32, {n}, 2)),
        m(HostTensor::normal(DType::bf16, {n}, 3, 0.1)),
        v(HostTensor::normal(DType::bf16, {n}, 4, 0.01, 0.5)) {}
  ops::AdamW adamw(std::int64_t first_element = 640) {
    ops::AdamW a;
    a.master = master, a.gradient = gradient, a.m = m, a.v = v, a.decay = 0.1;
    a.rounding = philox_key(3, "rounding"), a.moment_rounding = philox_key(3, "moment rounding");
    a.elements.first = first_element, a.control = &control;
    return a;
  }
  ops::MuonMomentum muon(const HostTensor& direction, std::int64_t first_element = 640) {
    return {.gradient = gradient,
            .m = m,
            .direction = direction,
            .control = &control,
            .rounding = philox_key(3, "moment rounding"),
            .elements = {.first = first_element}};
  }
  bool same_moments(const NarrowState& other) const {
    return m.same_bits(other.m) && v.same_bits(other.v);
  }
};

// The twin computes some ulps of f32 beside the reference, and a sum of terms of both signs may be
// smaller than they are; so a few elements in 2^16 x ulps are rounded to the other neighbour.
void expect_narrow_neighbours(const HostTensor& fast, const HostTensor& exact) {
  double other = 0;
  for (std::int64_t i = 0; i < fast.count(); ++i) {
    ASSERT_NEAR(fast[i], exact[i], 0x1p-7 * std::fabs(exact[i]) + 0x1p-20) << i;
    other += fast[i] != exact[i];
  }
  const double mean = static_cast<double>(fast.count()) * 16 * 0x1p-16;
  EXPECT_LE(other, mean + 5 * std::sqrt(mean) + 1);
}

TEST(NarrowMoments, FollowTheReference) {
  CpuBench cpu;
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t n : {1, 63, 65, 20001}) {
      NarrowState fast(n, type), exact = fast;
      exact.gradient = exact.gradient.to(DType::f64);
      if (type == DType::f32) exact.master = exact.master.to(DType::f64);
      ops::adamw(cpu.stream, fast.adamw());
      ref::adamw(exact.adamw());
      expect_narrow_neighbours(fast.m, exact.m);
      expect_narrow_neighbours(fast.v, exact.v);
      if (type == DType::f32)  // the step is of moments before they are rounded
        expect_close(fast.master, exact.master, 8 * 0x1p-24, 8 * 0x1p-24, "master");
      else
        expect_narrow_neighbours(fast.master, exact.master);
      EXPECT_TRUE(fast.master.guard_intact() && fast.m.guard_intact() && fast.v.guard_intact());
    }
}

TEST(NarrowMoments, MomentumFollowsTheReference) {
  CpuBench cpu;
  for (const bool nesterov : {false, true})
    for (const std::int64_t n : {1, 63, 65, 20001}) {
      NarrowState fast(n), exact = fast;
      exact.gradient = exact.gradient.to(DType::f64);
      HostTensor direction(DType::f32, {n}), wanted(DType::f64, {n});
      ops::MuonMomentum here = fast.muon(direction), there = exact.muon(wanted);
      here.nesterov = there.nesterov = nesterov;
      ops::muon_momentum(cpu.stream, here);
      ref::muon_momentum(there);
      expect_narrow_neighbours(fast.m, exact.m);
      expect_close(direction, wanted, 8 * 0x1p-24, 8 * 0x1p-24, "direction");
      EXPECT_TRUE(fast.m.guard_intact() && direction.guard_intact());
    }
}

// m, v and a bf16 master each lie a known part of a step of bf16 above their lower neighbour. The
// mean of n coins with this probability has an error below five times sqrt(p (1 - p) / n), and the
// parts themselves one of some ulps of f32, 2^-16 of a step. No two of them share random bits:
// otherwise both would go up together more often, min(p, q) instead of p q of the times.
TEST(NarrowMoments, RoundingIsUnbiasedAndIndependent) {
  CpuBench cpu;
  constexpr std::int64_t kCount = 1 << 16;
  constexpr double kStep = 0x1p-7;  // between bf16 numbers in [1, 2)
  NarrowState s(kCount, DType::bf16);
  const double g = 1 + 10 * kStep / 4;
  s.gradient = HostTensor::filled(DType::f32, {kCount}, -2 * g);
  s.m = HostTensor::filled(DType::bf16, {kCount}, -1);
  s.v = HostTensor::filled(DType::bf16, {kCount}, 1);
  s.master = HostTensor::filled(DType::bf16, {kCount}, 1.5);
  ops::AdamW args = s.adamw();
  args.decay = 0, args.epsilon = 0;
  const double m = 0.9 + 0.1 * g, v = 0.95 + 0.05 * g * g;
  s.control.learning_rate = 0.3 * kStep / (m / std::sqrt(v));
  ops::adamw(cpu.stream, args);
  const std::array<double, 3> wanted{(m - 1) / kStep, (v - 1) / kStep, 0.3};
  std::array<double, 3> ups{};
  std::array<double, 3> together{};  // of m and v, v and master, master and m
  for (std::int64_t i = 0; i < kCount; ++i) {
    const std::array<double, 3> up{(-s.m[i] - 1) / kStep, (s.v[i] - 1) / kStep,
                                   (s.master[i] - 1.5) / kStep};
    for (std::size_t k = 0; k < 3; ++k) {
      ASSERT_TRUE(up[k] == 0 || up[k] == 1) << k << " " << up[k];
      ups[k] += up[k];
      together[k] += up[k] * up[(k + 1) % 3];
    }
  }
  const auto n = static_cast<double>(kCount);
  const auto expect_part = [&](double count, double p) {
    EXPECT_NEAR(count / n, p, 5 * std::sqrt(p * (1 - p) / n) + 8 * 0x1p-16);
  };
  for (std::size_t k = 0; k < 3; ++k) {
    SCOPED_TRACE(k);
    expect_part(ups[k], wanted[k]);
    expect_part(together[k], wanted[k] * wanted[(k + 1) % 3]);
  }
}

// v = 1 decays by 1/1000 a step, a quarter of a step of bf16, which rounding to nearest would never
// see. The mean of random rounding follows; an error has a variance of at most 1/4 of a squared
// step (2^-8 below 1), and errors of steps and elements are independent.
TEST(NarrowMoments, SlowChangesAreNotLost) {
  CpuBench cpu;
  constexpr std::int64_t kCount = 4096;
  constexpr int kSteps = 500;
  NarrowState s(kCount);
  s.gradient = HostTensor::filled(DType::f32, {kCount}, 0);
  s.v = HostTensor::filled(DType::bf16, {kCount}, 1);
  for (int t = 1; t <= kSteps; ++t) {
    ops::AdamW args = s.adamw();
    args.beta2 = 0.999;
    s.control.updates = t;
    ops::adamw(cpu.stream, args);
  }
  double mean = 0;
  for (std::int64_t i = 0; i < kCount; ++i) mean += s.v[i] / kCount;
  EXPECT_NEAR(mean, std::pow(0.999, kSteps), 5 * std::sqrt(kSteps / 4.0 / kCount) * 0x1p-8 + 1e-5);
}

TEST(NarrowMoments, BitsBelongToTheElementAndTheUpdate) {
  CpuBench cpu;
  constexpr std::int64_t kCount = 64 * 9;
  const NarrowState fresh(kCount);
  NarrowState whole = fresh, parts = fresh, later = fresh, shifted = fresh;
  ops::adamw(cpu.stream, whole.adamw());
  for (const std::int64_t first : {0, 64, 321}) {
    const std::int64_t n = first == 0 ? 64 : first == 64 ? 257 : kCount - first;
    ops::AdamW args = parts.adamw(640 + first);
    for (TensorView* x : {&args.master, &args.gradient, &args.m, &args.v}) *x = x->slice(first, n);
    ops::adamw(cpu.stream, args);
  }
  EXPECT_TRUE(parts.same_moments(whole));
  later.control.updates = 8;
  ops::adamw(cpu.stream, later.adamw());
  EXPECT_FALSE(later.m.same_bits(whole.m) || later.v.same_bits(whole.v));
  ops::adamw(cpu.stream, shifted.adamw(704));
  EXPECT_FALSE(shifted.m.same_bits(whole.m) || shifted.v.same_bits(whole.v));
}

/// Columns [first, first + width) of the rows of a matrix.
HostTensor narrow_columns(const HostTensor& matrix, std::int64_t stride, std::int64_t first,
                          std::int64_t width) {
  const std::int64_t rows = matrix.count() / stride;
  HostTensor part(matrix.dtype(), {rows * width});
  for (std::int64_t i = 0; i < rows * width; ++i)
    part.set(i, matrix[i / width * stride + first + i % width]);
  return part;
}

// A rank that has some columns of a matrix rounds each element like a rank that has all, in AdamW
// and in the momentum of Muon.
TEST(NarrowMoments, PartsOfRowsAreRoundedAsTheWhole) {
  CpuBench cpu;
  for (const std::int64_t stride : {7, 48, 400})
    for (const bool muon : {false, true}) {
      const std::int64_t width = stride / 2, rows = 9, first = stride - width;
      const NarrowState fresh(stride * rows);
      NarrowState whole = fresh, part(rows * width);
      for (const auto of :
           {&NarrowState::master, &NarrowState::gradient, &NarrowState::m, &NarrowState::v})
        part.*of = narrow_columns(fresh.*of, stride, first, width);
      const NarrowState before = part;
      const ops::ElementNumbers elements{.first = 640 + first, .width = width, .stride = stride};
      HostTensor direction(DType::f32, {stride * rows}), of_part(DType::f32, {rows * width});
      if (muon) {
        ops::muon_momentum(cpu.stream, whole.muon(direction));
        ops::MuonMomentum args = part.muon(of_part);
        args.elements = elements;
        ops::muon_momentum(cpu.stream, args);
      } else {
        ops::adamw(cpu.stream, whole.adamw());
        ops::AdamW args = part.adamw();
        args.elements = elements;
        ops::adamw(cpu.stream, args);
        EXPECT_TRUE(part.v.same_bits(narrow_columns(whole.v, stride, first, width))) << stride;
      }
      EXPECT_TRUE(part.m.same_bits(narrow_columns(whole.m, stride, first, width))) << stride;
      EXPECT_FALSE(part.m.same_bits(before.m)) << "the comparison can fail";
    }
}

TEST(NarrowMoments, WhatIsNotFiniteStaysAndSkippedStepsWriteNothing) {
  CpuBench cpu;
  NarrowState s(200);
  s.gradient.set(3, NAN), s.gradient.set(5, INFINITY);
  const NarrowState before = s;
  s.control.apply = 0;
  HostTensor direction(DType::f32, {200});
  ops::adamw(cpu.stream, s.adamw());
  ops::muon_momentum(cpu.stream, s.muon(direction));
  EXPECT_TRUE(s.same_moments(before) && s.master.same_bits(before.master));
  s.control.apply = 1;
  ops::adamw(cpu.stream, s.adamw());
  EXPECT_TRUE(std::isnan(s.m[3]) && std::isnan(s.v[3]));
  EXPECT_TRUE(std::isinf(s.m[5]) && std::isinf(s.v[5]));
  EXPECT_TRUE(std::isfinite(s.m[4]) && std::isfinite(s.v[4]));
  EXPECT_FALSE(s.same_moments(before)) << "the comparison can fail";
}

TEST(NarrowMoments, OnlyBesideF32Gradients) {
  CpuBench cpu;
  NarrowState s(64);
  ops::AdamW args = s.adamw();
  const HostTensor wide = s.v.to(DType::f32);
  args.v = wide;
  EXPECT_THROW(ops::adamw(cpu.stream, args), Error) << "v of another type than m";
  s.gradient = s.gradient.to(DType::f64), s.master = s.master.to(DType::f64);
  EXPECT_THROW(ops::adamw(cpu.stream, s.adamw()), Error);
  HostTensor direction(DType::f64, {64});
  EXPECT_THROW(ops::muon_momentum(cpu.stream, s.muon(direction)), Error);
}

}  // namespace
}  // namespace choir
