#include "kernels/update/weight_average.hpp"

#include <limits>

#include "test/support/op_test.hpp"

namespace choir {
namespace {

struct AverageState {
  HostTensor average, weight;
  ops::StepControl control{.apply = 1, .updates = 5};
  std::int64_t first = 1;
  AverageState(DType weights, std::int64_t n)
      : average(HostTensor::normal(weights == DType::f64 ? DType::f64 : DType::f32, {n}, 1)),
        weight(HostTensor::normal(weights, {n}, 2)) {}
  ops::WeightAverage args() {
    ops::WeightAverage a;
    a.average = average, a.weight = weight, a.decay = 0.9, a.first = first, a.control = &control;
    return a;
  }
};

// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(0.9).
TEST(WeightAverage, GoldenSteps) {
  const double weights[6][3] = {{0.5, -1.0, 2.0},     {0.25, -0.875, 1.96875},
                                {1.0, -1.25, 2.0625}, {-0.25, -0.625, 1.90625},
                                {1.5, -1.5, 2.125},   {-0.75, -0.375, 1.84375}};
  const double golden[6][3] = {{0.5, -1.0, 2.0},
                               {0.47500000000000003, -0.9875, 1.9968750000000002},
                               {0.5275000000000001, -1.01375, 2.0034375},
                               {0.44975000000000004, -0.9748749999999999, 1.99371875},
                               {0.554775, -1.0273875000000001, 2.006846875},
                               {0.4242975, -0.9621487500000001, 1.9905371875}};
  CpuBench cpu;
  double average[3] = {7, std::numeric_limits<double>::quiet_NaN(), 9};  // not used
  // Steps that are not applied in between change nothing, and the first one counts from 3.
  for (int k = 0; k < 6; ++k)
    for (const double apply : {0.0, 1.0}) {
      const ops::StepControl control{.apply = apply, .updates = static_cast<double>(3 + k)};
      ops::weight_average(
          cpu.stream,
          {.average = {average, DType::f64, {3}},
           .weight = {const_cast<double*>(weights[apply == 1 ? k : 5 - k]), DType::f64, {3}},
           .decay = 0.9,
           .first = 3,
           .control = &control});
      for (int i = 0; i < 3 && apply == 1; ++i)
        EXPECT_NEAR(average[i], golden[k][i], 1e-15) << k << ", " << i;
    }
}

TEST(WeightAverage, FollowsTheReference) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const std::int64_t n : {1, 7, 16, 65, 20001})
      for (const std::int64_t first : {1, 5}) {
        SCOPED_TRACE(fmt::format("{} n {} first {}", name_of(dtype), n, first));
        CpuBench cpu;
        AverageState fast(dtype, n), exact = fast;
        fast.first = exact.first = first;
        exact.average = exact.average.to(DType::f64);
        if (dtype == DType::f32) exact.weight = exact.weight.to(DType::f64);
        ops::weight_average(cpu.stream, fast.args());
        ref::weight_average(exact.args());
        // Two products with rounded factors and a sum: of terms below 5.
        const double u = unit_roundoff(fast.average.dtype());
        expect_close(fast.average, exact.average, 4 * u, 8 * u, "average");
        EXPECT_TRUE(fast.average.guard_intact());
      }
}

TEST(WeightAverage, WritesNothingWhenTheStepIsNotApplied) {
  CpuBench cpu;
  for (const std::int64_t first : {1, 5}) {
    AverageState s(DType::f32, 100), before = s;
    s.first = first;
    s.control.apply = 0;
    ops::weight_average(cpu.stream, s.args());
    EXPECT_TRUE(s.average.same_bits(before.average));
  }
}

TEST(WeightAverage, RefusesWhatDoesNotFit) {
  CpuBench cpu;
  AverageState s(DType::f32, 10);
  ops::WeightAverage args = s.args();
  args.control = nullptr;
  EXPECT_THROW(ops::weight_average(cpu.stream, args), Error);
  args = s.args();
  args.weight = args.weight.slice(0, 9);
  EXPECT_THROW(ops::weight_average(cpu.stream, args), Error);
  for (const double decay : {0.0, 1.0}) {
    args = s.args();
    args.decay = decay;
    EXPECT_THROW(ops::weight_average(cpu.stream, args), Error);
  }
  AverageState narrow(DType::bf16, 10);
  args = narrow.args();
  args.average = narrow.weight;
  EXPECT_THROW(ops::weight_average(cpu.stream, args), Error);
}

}  // namespace
}  // namespace choir
