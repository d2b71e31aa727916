#include "kernels/update/lars.hpp"

#include "kernels/update/lars.hpp"
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {
namespace {

struct LarsMemory {
  HostTensor master, gradient, velocity, copy;
  ops::StepControl control{.learning_rate = 1e-2, .apply = 1, .gradient_factor = 0.7};
  HostTensor ratio = HostTensor::filled(DType::f64, {2}, 0.25);
  LarsMemory(std::int64_t n, DType copy_type)
      : master(HostTensor::normal(DType::f32, {n}, 1)),
        gradient(HostTensor::normal(DType::f32, {n}, 2)),
        velocity(HostTensor::normal(DType::f32, {n}, 3, 0.1)) {
    if (copy_type != DType::f32) copy = HostTensor(copy_type, {n});
  }
  ops::Lars args(bool ratios) {
    ops::Lars a;
    a.master = master, a.gradient = gradient, a.velocity = velocity, a.copy = copy;
    a.control = &control, a.scale = 0.5, a.ratio = ratios ? ratio.as<double>() : nullptr;
    return a;
  }
};

class CudaLars : public CudaTest {
 protected:
  void run(LarsMemory& s, int skew, bool ratios) {
    Mirror mirror(device());
    ops::Lars a = s.args(ratios);
    a.master = mirror.io(s.master, skew), a.gradient = mirror.in(s.gradient, skew);
    a.velocity = mirror.io(s.velocity, skew), a.copy = mirror.io(s.copy, skew);
    if (ratios) a.ratio = mirror.in(s.ratio).as<double>();
    a.control = mirror.object(s.control);
    ops::lars(stream(), a);
    mirror.fetch();
  }
};

// Four roundings of terms below 5.
TEST_F(CudaLars, FollowsTheReference) {
  for (const DType copy : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t n : {1, 8, 9, 255, 3001})
      for (const int skew : {0, 1}) {
        SCOPED_TRACE(fmt::format("copy {} n {} skew {}", name_of(copy), n, skew));
        const bool ratios = n != 9;
        LarsMemory fast(n, copy), exact = fast;
        for (HostTensor* x : {&exact.master, &exact.gradient, &exact.velocity})
          *x = x->to(DType::f64);
        run(fast, skew, ratios);
        ref::lars(exact.args(ratios));
        const double u = unit_roundoff(DType::f32);
        expect_close(fast.velocity, exact.velocity, 4 * u, 8 * u, "velocity");
        expect_close(fast.master, exact.master, 4 * u, 8 * u, "master");
        const HostTensor nearest = fast.master.to(copy);
        for (std::int64_t i = 0; i < fast.copy.count(); ++i)
          ASSERT_EQ(fast.copy[i], nearest[i]) << i;
      }
}

TEST_F(CudaLars, WritesNothingWhenTheStepIsNotApplied) {
  LarsMemory s(100, DType::bf16), before = s;
  s.control.apply = 0;
  run(s, 0, true);
  EXPECT_TRUE(s.master.same_bits(before.master) && s.velocity.same_bits(before.velocity));
}

// Tensors of one chunk without a gradient, with weights of zero, and with more chunks than a block
// has threads.
TEST_F(CudaLars, RatiosAreThoseOfTheCpu) {
  constexpr std::int64_t kChunks = 300;
  HostTensor weights = HostTensor::filled(DType::f64, {kChunks}, 0.125);
  HostTensor gradients = HostTensor::filled(DType::f64, {kChunks}, 0.5);
  weights.set(1, 0);
  gradients.set(0, 0);
  HostTensor begins(DType::i64, {4}), here(DType::f64, {6}), there(DType::f64, {6});
  const std::int64_t first[] = {0, 1, 2, kChunks};
  std::copy(std::begin(first), std::end(first), begins.as<std::int64_t>());
  ops::StepControl control{.apply = 1, .gradient_factor = 0.5};
  ops::TrustRatios args;
  args.weight_sums = weights, args.gradient_sums = gradients, args.begins = begins;
  args.ratios = here, args.coefficient = 0.02, args.decay = 0.01, args.epsilon = 0.25,
  args.control = &control;
  CpuDevice cpu;
  ops::trust_ratios(Stream(cpu), args);
  Mirror mirror(device());
  args.weight_sums = mirror.in(weights), args.gradient_sums = mirror.in(gradients);
  args.begins = mirror.in(begins), args.ratios = mirror.io(there);
  args.control = mirror.object(control);
  ops::trust_ratios(stream(), args);
  mirror.fetch();
  // Sums of eighths and halves are exact in any order.
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(there[i], here[i]) << i;
  EXPECT_GT(here[0], 0.02);
  EXPECT_EQ(here[2], 1);
  EXPECT_EQ(here[3], 0);
}

TEST_F(CudaLars, RefusesF64) {
  HostTensor x = HostTensor::filled(DType::f64, {4}, 1);
  const ops::StepControl control{.apply = 1};
  EXPECT_THROW(
      ops::lars(stream(), {.master = x, .gradient = x, .velocity = x, .control = &control}), Error);
}

}  // namespace
}  // namespace choir::test
