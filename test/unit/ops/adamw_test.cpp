#include "choir/ops/adamw.hpp"

#include "kernels/adamw.hpp"
#include "test/support/op_test.hpp"

namespace choir {
namespace {

struct State {
  HostTensor master, gradient, m, v, copy;
  State(DType dtype, std::int64_t n, bool with_copy)
      : master(HostTensor::normal(dtype, {n}, 1)),
        gradient(HostTensor::normal(dtype, {n}, 2)),
        m(HostTensor::filled(dtype, {n}, 0)),
        v(HostTensor::filled(dtype, {n}, 0)) {
    if (with_copy) copy = HostTensor(DType::bf16, {n});
  }
  ops::AdamW args(std::int64_t step, const double* scale) const {
    ops::AdamW a;
    a.master = master, a.gradient = gradient, a.m = m, a.v = v, a.copy = copy;
    a.learning_rate = 1e-2, a.decay = 0.1, a.step = step, a.gradient_scale = scale;
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
          ops::adamw(cpu.stream, fast.args(t, &scale));
          ref::adamw(exact.args(t, &scale));
        }
        // Four roundings a step and rounded constants: relative 8 u a step for m and v. m sums
        // terms of both signs, so its error is absolute (|m| <= 1); a step of at most lr / (1 -
        // b1)^(1/2) carries it over to w, and w itself is rounded every step.
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
  ops::adamw(cpu.stream, s.args(1, nullptr));
  for (int i = 0; i < 5; ++i) {
    const double sign = s.gradient[i] > 0 ? 1 : -1;
    EXPECT_NEAR(s.master[i], before[i] - 1e-2 * (sign + 0.1 * before[i]),
                1e-2 * 1e-8 / std::fabs(s.gradient[i]) + 1e-16);
  }
}

TEST(AdamW, GradientScaleIsReadThroughThePointer) {
  CpuBench cpu;
  State a(DType::f32, 100, false), b = a;
  double scale = 1;
  const ops::AdamW args = a.args(1, &scale);
  scale = 0.25;  // after the arguments were made
  ops::adamw(cpu.stream, args);
  for (int i = 0; i < 100; ++i) b.gradient.set(i, 0.25 * b.gradient[i]);
  ops::adamw(cpu.stream, b.args(1, nullptr));
  EXPECT_TRUE(a.master.same_bits(b.master));
}

TEST(AdamW, NanGradientsAreNotHidden) {
  CpuBench cpu;
  State s(DType::f32, 20, true);
  s.gradient.set(3, NAN);
  ops::adamw(cpu.stream, s.args(1, nullptr));
  EXPECT_TRUE(std::isnan(s.master[3]) && std::isnan(s.copy[3]));
  EXPECT_FALSE(std::isnan(s.master[4]));
}

TEST(AdamW, RefusesStepZero) {
  CpuBench cpu;
  State s(DType::f32, 4, false);
  EXPECT_THROW(ops::adamw(cpu.stream, s.args(0, nullptr)), Error);
}

}  // namespace
}  // namespace choir
