#include "kernels/update/adamw.hpp"

#include "kernels/update/adamw.hpp"
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {
namespace {

/// Parameters after some steps, so that moments are not zero, with the control of step 3.
struct State {
  HostTensor master, gradient, m, v, copy;
  ops::StepControl control;
  ops::ElementNumbers elements{.first = 640};
  double scale = 1;
  State(DType type, std::int64_t n, DType copy_type, DType moments = DType::f32)
      : master(HostTensor::normal(type, {n}, 1)),
        gradient(HostTensor::normal(DType::f32, {n}, 2)),
        m(HostTensor::normal(moments, {n}, 3, 0.1)),
        v(HostTensor::normal(moments, {n}, 4, 0.01, 0.5)) {
    if (copy_type != DType::f32) copy = HostTensor(copy_type, {n});
    control = {.learning_rate = 1e-2,
               .apply = 1,
               .gradient_factor = 0.7,
               .correction1 = 1 - 0.9 * 0.9 * 0.9,
               .correction2 = 1 - 0.95 * 0.95 * 0.95,
               .updates = 3};
  }
  ops::AdamW args() const {
    ops::AdamW a;
    a.master = master, a.gradient = gradient, a.m = m, a.v = v, a.copy = copy;
    a.decay = 0.1, a.rounding = philox_key(3, "rounding"), a.elements = elements;
    a.moment_rounding = philox_key(3, "moment rounding");
    a.control = &control, a.scale = scale;
    return a;
  }
  bool same_bits(const State& other) const {
    return master.same_bits(other.master) && m.same_bits(other.m) && v.same_bits(other.v) &&
           (copy.count() == 0 || copy.same_bits(other.copy));
  }
};

class CudaAdamW : public CudaTest {
 protected:
  void run(State& s, int skew = 0) {
    Mirror mirror(device());
    ops::AdamW a = s.args();
    a.master = mirror.io(s.master, skew), a.gradient = mirror.in(s.gradient, skew);
    a.m = mirror.io(s.m, skew), a.v = mirror.io(s.v, skew), a.copy = mirror.io(s.copy, skew);
    a.control = mirror.object(s.control);
    ops::adamw(stream(), a);
    mirror.fetch();
  }
};

constexpr DType kNoCopy = DType::f32;

// One step: a few roundings of each term; terms stay below 1 (m, v, the step) or below 5.
TEST_F(CudaAdamW, FollowsTheReference) {
  for (const DType copy : {kNoCopy, DType::bf16, DType::f16})
    for (const std::int64_t n : {1, 7, 8, 9, 64, 255, 3001})
      for (const int skew : {0, 1}) {
        SCOPED_TRACE(fmt::format("copy {} n {} skew {}", name_of(copy), n, skew));
        State fast(DType::f32, n, copy);
        fast.scale = n % 2 == 0 ? 1 : 0.3;
        State exact = fast;
        for (HostTensor* x : {&exact.master, &exact.gradient, &exact.m, &exact.v})
          *x = x->to(DType::f64);
        run(fast, skew);
        ref::adamw(exact.args());
        const double u = unit_roundoff(DType::f32);
        expect_close(fast.v, exact.v, 8 * u, 0, "v");
        expect_close(fast.m, exact.m, 8 * u, 8 * u, "m");
        expect_close(fast.master, exact.master, 8 * u, 8 * u, "master");
        for (std::int64_t i = 0; i < fast.copy.count(); ++i)
          ASSERT_EQ(fast.copy[i], fast.master.to(copy)[i]) << "the nearest to the master";
        State again(DType::f32, n, copy);
        again.scale = fast.scale;
        run(again, skew);
        EXPECT_TRUE(again.same_bits(fast));
      }
}

// The random bits are those of the CPU. Without a gradient the arithmetic is one product, w (1 - lr
// decay), rounded alike everywhere; the added value must be the same, too.
TEST_F(CudaAdamW, RandomRoundingHasTheBitsOfTheCpu) {
  CpuDevice cpu;
  for (const std::int64_t n : {1, 64, 2005})
    for (const int skew : {0, 1}) {
      State here(DType::bf16, n, kNoCopy);
      here.gradient = HostTensor::filled(DType::f32, {n}, 0);
      here.m = here.gradient;
      State there = here;
      const HostTensor before = here.master;
      ops::adamw(Stream(cpu), here.args());
      run(there, skew);
      EXPECT_TRUE(there.same_bits(here)) << n << " skew " << skew;
      EXPECT_FALSE(n > 1 && here.master.same_bits(before)) << "decay moves something";
      State later = there;
      later.master = before, later.control.updates = 4;
      run(later);
      EXPECT_FALSE(n > 64 && later.same_bits(there)) << "the update counts";
    }
}

// Rows whose columns fit into packs, and rows whose columns do not.
TEST_F(CudaAdamW, PartsOfRowsHaveTheBitsOfTheCpu) {
  CpuDevice cpu;
  for (const ops::ElementNumbers& elements :
       {ops::ElementNumbers{.first = 128, .width = 48, .stride = 96, .column = 16},
        {.first = 126, .width = 48, .stride = 96},
        {.first = 128, .width = 21, .stride = 42, .column = 3},
        {.first = 1001, .width = 0, .stride = 0, .column = 2}}) {
    State here(DType::bf16, 999, kNoCopy);
    here.gradient = HostTensor::filled(DType::f32, {999}, 0);
    here.m = here.gradient, here.elements = elements;
    State there = here, usual = here;
    usual.elements = {.first = 640};
    ops::adamw(Stream(cpu), here.args());
    ops::adamw(Stream(cpu), usual.args());
    run(there);
    EXPECT_TRUE(there.same_bits(here)) << elements.width << " from " << elements.first;
    EXPECT_FALSE(here.same_bits(usual));
  }
}

// Values that differ by some ulps of f32 before rounding: a few in 2^16 elements are rounded to the
// other neighbour.
TEST_F(CudaAdamW, Bf16MastersFollowTheReference) {
  constexpr std::int64_t kCount = 4001;
  State fast(DType::bf16, kCount, kNoCopy), exact = fast;
  for (HostTensor* x : {&exact.gradient, &exact.m, &exact.v}) *x = x->to(DType::f64);
  run(fast);
  ref::adamw(exact.args());
  std::int64_t other = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const int apart = fast.master.as<bf16>()[i].bits - exact.master.as<bf16>()[i].bits;
    ASSERT_LE(std::abs(apart), 1) << i;
    other += apart != 0;
  }
  const double mean = kCount * 8 * 0x1p-16;  // at most eight ulps of difference
  EXPECT_LE(static_cast<double>(other), mean + 5 * std::sqrt(mean) + 1);
}

// Without a gradient the new moments are products, rounded to f32 alike everywhere.
TEST_F(CudaAdamW, NarrowMomentsHaveTheBitsOfTheCpu) {
  CpuDevice cpu;
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t n : {1, 64, 999})
      for (const ops::ElementNumbers& elements :
           {ops::ElementNumbers{.first = 640},
            {.first = 128, .width = 48, .stride = 96, .column = 16},
            {.first = 128, .width = 21, .stride = 42, .column = 3},
            {.first = 1001, .width = 0, .stride = 0, .column = 2}}) {
        SCOPED_TRACE(fmt::format("{} n {} width {}", name_of(type), n, elements.width));
        State here(type, n, type == DType::f32 ? DType::f16 : kNoCopy, DType::bf16);
        here.gradient = HostTensor::filled(DType::f32, {n}, 0);
        here.elements = elements;
        State there = here;
        const State before = here;
        ops::adamw(Stream(cpu), here.args());
        run(there, static_cast<int>(n % 2));
        EXPECT_TRUE(there.m.same_bits(here.m) && there.v.same_bits(here.v));
        EXPECT_FALSE(n > 1 && (here.m.same_bits(before.m) || here.v.same_bits(before.v)));
        State later = before;
        later.control.updates = 4;
        run(later);
        EXPECT_FALSE(n > 64 && (later.m.same_bits(there.m) || later.v.same_bits(there.v)));
      }
}

// The tolerance is that of bf16 masters; a sum of terms of both signs may be smaller than their
// rounding.
TEST_F(CudaAdamW, NarrowMomentsFollowTheReference) {
  constexpr std::int64_t kCount = 4001;
  State fast(DType::f32, kCount, DType::bf16, DType::bf16), exact = fast;
  exact.gradient = exact.gradient.to(DType::f64), exact.master = exact.master.to(DType::f64);
  run(fast);
  ref::adamw(exact.args());
  const double u = unit_roundoff(DType::f32);
  expect_close(fast.master, exact.master, 8 * u, 8 * u, "master");
  std::int64_t other = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(fast.m[i], exact.m[i], 0x1p-7 * std::abs(exact.m[i]) + 0x1p-20) << i;
    ASSERT_NEAR(fast.v[i], exact.v[i], 0x1p-7 * exact.v[i]) << i;
    other += (fast.m[i] != exact.m[i]) + (fast.v[i] != exact.v[i]);
  }
  const double mean = kCount * 2 * 16 * 0x1p-16;
  EXPECT_LE(static_cast<double>(other), mean + 5 * std::sqrt(mean) + 1);
}

TEST_F(CudaAdamW, AStepThatIsNotAppliedLeavesEveryBit) {
  for (const DType type : {DType::f32, DType::bf16}) {
    State s(type, 1000, type == DType::f32 ? DType::bf16 : kNoCopy, type);
    s.gradient.set(7, NAN);
    s.control.apply = 0;
    const State before = s;
    run(s);
    EXPECT_TRUE(s.same_bits(before));
    s.control.apply = 1;
    run(s);
    EXPECT_FALSE(s.same_bits(before)) << "the comparison can fail";
    EXPECT_TRUE(std::isnan(s.master[7])) << "and NaN is not hidden";
    EXPECT_FALSE(std::isnan(s.master[8]));
  }
}

TEST_F(CudaAdamW, StepTsan) {
  State s(DType::bf16, 2005, kNoCopy);
  run(s);
  EXPECT_FALSE(std::isnan(s.master[2004]));
}

TEST_F(CudaAdamW, RefusesDoubles) {
  HostTensor x = HostTensor::normal(DType::f64, {8}, 1);
  ops::StepControl control;
  EXPECT_THROW(
      ops::adamw(stream(), {.master = x, .gradient = x, .m = x, .v = x, .control = &control}),
      Error);
}

}  // namespace
}  // namespace choir::test
