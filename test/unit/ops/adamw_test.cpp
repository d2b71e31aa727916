#include "kernels/update/adamw.hpp"

#include "kernels/update/adamw.hpp"
#include "test/support/op_test.hpp"

namespace choir {
namespace {

struct State {
  HostTensor master, gradient, m, v, copy;
  ops::StepControl control;
  State(DType dtype, std::int64_t n, bool with_copy, DType copy_type = DType::bf16)
      : master(HostTensor::normal(dtype, {n}, 1)),
        gradient(HostTensor::normal(dtype, {n}, 2)),
        m(HostTensor::filled(dtype, {n}, 0)),
        v(HostTensor::filled(dtype, {n}, 0)) {
    if (with_copy) copy = HostTensor(copy_type, {n});
  }
  ops::AdamW args(std::int64_t step, double scale) {
    ops::AdamW a;
    a.master = master, a.gradient = gradient, a.m = m, a.v = v, a.copy = copy;
    const auto t = static_cast<double>(step);
    control = {.learning_rate = 1e-2,
               .apply = 1,
               .gradient_factor = scale,
               .correction1 = 1 - std::pow(a.beta1, t),
               .correction2 = 1 - std::pow(a.beta2, t),
               .updates = t};
    a.decay = 0.1, a.control = &control;
    return a;
  }
};

TEST(AdamW, FollowsTheReferenceOverSteps) {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const std::int64_t n : {1, 3, 7, 16, 17, 63, 65, 1000, 20001})
      for (const bool with_copy : {false, true}) {
        SCOPED_TRACE(fmt::format("{} n {} copy {}", name_of(dtype), n, with_copy));
        CpuBench cpu;
        State fast(dtype, n, with_copy), exact = fast;
        for (HostTensor* x : {&exact.master, &exact.gradient, &exact.m, &exact.v})
          *x = x->to(DType::f64);
        const double scale = 0.7;
        constexpr int kSteps = 10;
        for (int t = 1; t <= kSteps; ++t) {
          for (std::int64_t i = 0; i < n; ++i) {
            fast.gradient.set(i, std::sin(static_cast<double>(i + t)));
            exact.gradient.set(i, fast.gradient[i]);
          }
          ops::adamw(cpu.stream, fast.args(t, scale));
          ref::adamw(exact.args(t, scale));
        }
        // Four roundings per step and rounded constants: a relative error of 8 u per step for m and
        // v. m sums terms of both signs, so its error is absolute (|m| <= 1); a step of at most lr
        // / (1 - b1)^(1/2) carries it over to w, and w itself is rounded every step.
        const double u = unit_roundoff(dtype), growth = 8 * kSteps * u;
        expect_close(fast.v, exact.v, growth, 0, "v");
        expect_close(fast.m, exact.m, 0, growth, "m");
        expect_close(fast.master, exact.master, growth, growth, "master");
        for (std::int64_t i = 0; with_copy && i < n; ++i)
          ASSERT_EQ(fast.copy.as<bf16>()[i].bits, bf16(static_cast<float>(fast.master[i])).bits);
        EXPECT_TRUE(fast.master.guard_intact() && fast.m.guard_intact() && fast.v.guard_intact());
      }
}

TEST(AdamW, FirstStepMovesByTheLearningRate) {
  // Closed form: m_hat = g and v_hat = g^2, so w becomes w - lr (sign(g) + decay w) up to eps /
  // |g|.
  CpuBench cpu;
  State s(DType::f64, 5, false);
  const HostTensor before = s.master;
  ops::adamw(cpu.stream, s.args(1, 1));
  for (int i = 0; i < 5; ++i) {
    const double sign = s.gradient[i] > 0 ? 1 : -1;
    EXPECT_NEAR(s.master[i], before[i] - 1e-2 * (sign + 0.1 * before[i]),
                1e-2 * 1e-8 / std::fabs(s.gradient[i]) + 1e-16);
  }
}

TEST(AdamW, AScaleIsPartOfTheLearningRate) {
  CpuBench cpu;
  for (const DType dtype : {DType::f64, DType::f32}) {
    State a(dtype, 1000, true), b = a;
    ops::AdamW args = a.args(1, 1);
    args.scale = 0.25;  // exact
    ops::adamw(cpu.stream, args);
    args = b.args(1, 1);
    b.control.learning_rate *= 0.25;
    ops::adamw(cpu.stream, args);
    EXPECT_TRUE(a.master.same_bits(b.master) && a.copy.same_bits(b.copy) && a.v.same_bits(b.v));
    State whole(dtype, 1000, true);
    ops::adamw(cpu.stream, whole.args(1, 1));
    EXPECT_FALSE(a.master.same_bits(whole.master)) << "the comparison can fail";
  }
}

TEST(AdamW, ControlIsReadThroughThePointer) {
  CpuBench cpu;
  State a(DType::f32, 100, false), b = a;
  const ops::AdamW args = a.args(1, 1);
  a.control.gradient_factor = 0.25;  // after the arguments were made
  ops::adamw(cpu.stream, args);
  for (int i = 0; i < 100; ++i) b.gradient.set(i, 0.25 * b.gradient[i]);
  ops::adamw(cpu.stream, b.args(1, 1));
  EXPECT_TRUE(a.master.same_bits(b.master));
}

TEST(AdamW, NanGradientsAreNotHidden) {
  CpuBench cpu;
  State s(DType::f32, 20, true);
  s.gradient.set(3, NAN);
  ops::adamw(cpu.stream, s.args(1, 1));
  EXPECT_TRUE(std::isnan(s.master[3]) && std::isnan(s.copy[3]));
  EXPECT_FALSE(std::isnan(s.master[4]));
}

TEST(AdamW, AStepThatIsNotAppliedLeavesEveryBit) {
  CpuBench cpu;
  for (const DType dtype : {DType::f64, DType::f32}) {
    State s(dtype, 1000, true);
    ops::adamw(cpu.stream, s.args(1, 1));  // moments and copy have contents
    const State before = s;
    s.gradient.set(7, NAN);
    const ops::AdamW args = s.args(2, 0);
    s.control.apply = 0;
    ops::adamw(cpu.stream, args);
    EXPECT_TRUE(s.master.same_bits(before.master) && s.m.same_bits(before.m) &&
                s.v.same_bits(before.v) && s.copy.same_bits(before.copy));
    s.control.apply = 1;
    ops::adamw(cpu.stream, args);
    EXPECT_FALSE(s.master.same_bits(before.master)) << "the comparison can fail";
  }
}

TEST(AdamW, F16CopyIsTheNearest) {
  CpuBench cpu;
  for (const DType dtype : {DType::f64, DType::f32}) {
    State s(dtype, 133, true, DType::f16);
    ops::adamw(cpu.stream, s.args(1, 1));
    for (std::int64_t i = 0; i < 133; ++i)
      ASSERT_EQ(s.copy.as<f16>()[i].bits, f16(static_cast<float>(s.master[i])).bits) << i;
    EXPECT_TRUE(s.copy.guard_intact());
  }
}

TEST(AdamW, RefusesWhatDoesNotFit) {
  CpuBench cpu;
  State s(DType::f32, 64, true);
  ops::AdamW args = s.args(1, 1);
  args.control = nullptr;
  EXPECT_THROW(ops::adamw(cpu.stream, args), Error);
  args = s.args(1, 1);
  for (const ops::ElementNumbers& elements : {ops::ElementNumbers{.first = -1},
                                              {.column = -1},
                                              {.width = 8, .stride = 7},
                                              {.width = 8, .stride = 8, .column = 8}}) {
    args.elements = elements;
    EXPECT_THROW(ops::adamw(cpu.stream, args), Error);
  }
  HostTensor halves(DType::bf16, {64});
  args = s.args(1, 1);
  args.master = halves;
  EXPECT_THROW(ops::adamw(cpu.stream, args), Error) << "a copy beside bf16 masters";
}

/// bf16 masters with f32 moments.
struct TrueState : State {
  explicit TrueState(std::int64_t n) : State(DType::f32, n, false) {
    master = master.to(DType::bf16);
  }
  ops::AdamW args(std::int64_t step, std::int64_t first_element = 0) {
    ops::AdamW a = State::args(step, 1);
    a.rounding = philox_key(3, "rounding"), a.elements.first = first_element;
    return a;
  }
};

// The reference rounds a double through the nearest float, the twin rounds the float that it
// computed: the two differ by some ulps of f32 before the 16 random bits are added, so a few
// elements in 2^16 x ulps may be rounded to the other neighbour, and none to any other number.
TEST(AdamWTrue, FollowsTheReference) {
  CpuBench cpu;
  constexpr std::int64_t kCount = 20001;
  TrueState fast(kCount), exact = fast;
  for (HostTensor* x : {&exact.gradient, &exact.m, &exact.v}) *x = x->to(DType::f64);
  ops::adamw(cpu.stream, fast.args(1, 128));
  ref::adamw(exact.args(1, 128));
  std::int64_t other = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const int apart = fast.master.as<bf16>()[i].bits - exact.master.as<bf16>()[i].bits;
    ASSERT_LE(std::abs(apart), 1) << i;
    other += apart != 0;
  }
  // The difference is at most eight ulps: 8 / 2^16 of the elements, and five standard deviations.
  const double mean = kCount * 8 * 0x1p-16;
  EXPECT_LE(static_cast<double>(other), mean + 5 * std::sqrt(mean) + 1);
  EXPECT_TRUE(fast.master.guard_intact() && fast.m.guard_intact() && fast.v.guard_intact());
}

// The update is 1/8 of a bf16 step: rounding to nearest would always lose it. With random rounding
// one weight in eight moves up by a whole step. The mean of n weights is that of n coins with p =
// 1/8, so its error is below five times sqrt(p (1 - p) / n) steps.
TEST(AdamWTrue, RoundingIsUnbiased) {
  CpuBench cpu;
  constexpr std::int64_t kCount = 1 << 16;
  constexpr double kStep = 0x1p-7;  // between bf16 numbers in [1, 2)
  TrueState s(kCount);
  s.master = HostTensor::filled(DType::bf16, {kCount}, 1.5);
  s.gradient = HostTensor::filled(DType::f32, {kCount}, -1);
  ops::AdamW args = s.args(1);
  args.decay = 0, args.epsilon = 0;
  s.control.learning_rate = kStep / 8;  // m_hat / sqrt(v_hat) is -1
  ops::adamw(cpu.stream, args);
  double sum = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(s.master[i] == 1.5 || s.master[i] == 1.5 + kStep) << s.master[i];
    sum += (s.master[i] - 1.5) / kStep;
  }
  const auto n = static_cast<double>(kCount);
  EXPECT_NEAR(sum / n, 0.125, 5 * std::sqrt(0.125 * 0.875 / n) + 4 * 0x1p-16 /* ulps of 1.5 */);
}

// Element i of a range that starts at f is element f + i: it is rounded alike, whichever rank
// updates it.
TEST(AdamWTrue, RoundingBelongsToTheElementAndTheUpdate) {
  CpuBench cpu;
  constexpr std::int64_t kCount = 64 * 9;
  TrueState whole(kCount), parts = whole, later = whole, shifted = whole;
  ops::adamw(cpu.stream, whole.args(1, 640));
  for (const std::int64_t first : {0, 64, 320}) {
    const std::int64_t n = first == 0 ? 64 : 256;
    ops::AdamW args = parts.args(1, 640 + first);
    for (TensorView* x : {&args.master, &args.gradient, &args.m, &args.v}) *x = x->slice(first, n);
    ops::adamw(cpu.stream, args);
  }
  EXPECT_TRUE(parts.master.same_bits(whole.master) && parts.m.same_bits(whole.m));
  ops::AdamW args = later.args(1, 640);
  later.control.updates = 2;  // the same arithmetic, other random numbers
  ops::adamw(cpu.stream, args);
  EXPECT_FALSE(later.master.same_bits(whole.master));
  ops::adamw(cpu.stream, shifted.args(1, 704));
  EXPECT_FALSE(shifted.master.same_bits(whole.master));
}

/// Columns [first, first + width) of the rows of a matrix.
HostTensor columns_of(const HostTensor& matrix, std::int64_t stride, std::int64_t first,
                      std::int64_t width) {
  const std::int64_t rows = matrix.count() / stride;
  HostTensor part(matrix.dtype(), {rows * width});
  for (std::int64_t i = 0; i < rows * width; ++i)
    part.set(i, matrix[i / width * stride + first + i % width]);
  return part;
}

// A rank that has some columns of a matrix, or only the end of them, rounds each element like a
// rank that has all.
TEST(AdamWTrue, PartsOfRowsAreRoundedAsTheWhole) {
  CpuBench cpu;
  for (const std::int64_t stride : {7, 48, 128, 400})
    for (const std::int64_t parts : {1, 2, 3, 4})
      for (const std::int64_t begin : {0, 640, 1003}) {
        const std::int64_t width = stride / parts, rows = 9;
        TrueState whole(stride * rows);
        const TrueState before = whole;
        ops::adamw(cpu.stream, whole.args(1, begin));
        for (const std::int64_t first : {std::int64_t{0}, stride - width}) {
          TrueState part(rows * width);
          part.master = columns_of(before.master, stride, first, width);
          part.gradient = columns_of(before.gradient, stride, first, width);
          const TrueState fresh = part;
          const ops::ElementNumbers elements{
              .first = begin + first, .width = width, .stride = stride};
          ops::AdamW args = part.args(1);
          args.elements = elements;
          ops::adamw(cpu.stream, args);
          const HostTensor expected = columns_of(whole.master, stride, first, width);
          EXPECT_TRUE(part.master.same_bits(expected)) << width << " of " << stride;
          const std::int64_t cut = rows * width / 2;  // inside a row
          TrueState end = fresh;
          args = end.args(1);
          args.elements = elements.behind(cut);
          for (TensorView* x : {&args.master, &args.gradient, &args.m, &args.v})
            *x = x->slice(cut, rows * width - cut);
          ops::adamw(cpu.stream, args);
          for (std::int64_t i = 0; i < rows * width; ++i)
            ASSERT_EQ(end.master[i], i < cut ? fresh.master[i] : expected[i]) << i;
        }
      }
}

TEST(AdamWTrue, WhatIsExactStaysAndNanIsNotHidden) {
  CpuBench cpu;
  TrueState s(200);
  s.gradient = HostTensor::filled(DType::f32, {200}, 0);
  const HostTensor before = s.master;
  ops::AdamW args = s.args(1);
  args.decay = 0;
  ops::adamw(cpu.stream, args);
  EXPECT_TRUE(s.master.same_bits(before));
  s.gradient.set(3, NAN);
  s.master.set(5, INFINITY);
  ops::adamw(cpu.stream, args);
  EXPECT_TRUE(std::isnan(s.master[3]));
  EXPECT_TRUE(std::isinf(s.master[5]));
  EXPECT_EQ(s.master[4], before[4]);
}

}  // namespace
}  // namespace choir
