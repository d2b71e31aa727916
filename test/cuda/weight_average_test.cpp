#include "kernels/update/weight_average.hpp"

#include "test/cuda/cuda_fixture.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {
namespace {

class CudaWeightAverage : public CudaTest {
 protected:
  HostTensor average, weight;
  ops::StepControl control{.apply = 1, .updates = 5};

  ops::WeightAverage args(std::int64_t first) {
    ops::WeightAverage a;
    a.average = average, a.weight = weight, a.decay = 0.9, a.first = first, a.control = &control;
    return a;
  }
  void fill(DType type, std::int64_t n) {
    average = HostTensor::normal(DType::f32, {n}, 1);
    weight = HostTensor::normal(type, {n}, 2);
  }
  void run(int skew, std::int64_t first) {
    Mirror mirror(device());
    ops::WeightAverage a = args(first);
    a.average = mirror.io(average, skew), a.weight = mirror.in(weight, skew);
    a.control = mirror.object(control);
    ops::weight_average(stream(), a);
    mirror.fetch();
  }
};

// Two products with rounded factors and a sum: of terms below 5.
TEST_F(CudaWeightAverage, FollowsTheReference) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t n : {1, 8, 9, 255, 3001})
      for (const int skew : {0, 1})
        for (const std::int64_t first : {1, 5}) {
          SCOPED_TRACE(fmt::format("{} n {} skew {} first {}", name_of(type), n, skew, first));
          fill(type, n);
          HostTensor exact = average.to(DType::f64);
          HostTensor wide = type == DType::bf16 ? weight : weight.to(DType::f64);
          ops::WeightAverage reference = args(first);
          reference.average = exact, reference.weight = wide;
          ref::weight_average(reference);
          run(skew, first);
          const double u = unit_roundoff(DType::f32);
          expect_close(average, exact, 4 * u, 8 * u, "average");
        }
}

TEST_F(CudaWeightAverage, WritesNothingWhenTheStepIsNotApplied) {
  fill(DType::f32, 100);
  const HostTensor before = average;
  control.apply = 0;
  for (const std::int64_t first : {1, 5}) run(0, first);
  EXPECT_TRUE(average.same_bits(before));
}

}  // namespace
}  // namespace choir::test
