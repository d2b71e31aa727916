#include "src/device/null_device.hpp"
#include "test/support/batch_norm_case.hpp"
#include "test/support/gradcheck.hpp"
#include "test/support/threads_case.hpp"

namespace choir::test {
namespace {

TEST(BatchNorm, MatchesTheReferenceForRaggedShapesAndAllTypes) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const bool training : {true, false})
      for (const std::int64_t width : {1, 7, 16, 65})
        for (const std::int64_t frames : {1, 5, 67})
          for (const bool masked : {false, true})
            check_batch_norm(device, {dtype, 5, frames, width, training, masked});
}

struct BatchNormGolden {
  HostTensor y, mean, variance, d_x, d_weight, d_bias, evaluated;
};

/// Rows of two samples of 3 frames; `lengths` gives the counted ones.
void check_golden_norm(std::initializer_list<double> lengths, const BatchNormGolden& golden) {
  CpuBench cpu;
  BatchNormCase c{DType::f64, 2, 3, 2};
  BatchNormTensors t(c);
  for (std::int64_t i = 0; i < 12; ++i) {
    t.x.set(i, static_cast<double>(5 * i * i % 17 - 8) / 4);
    t.d_y.set(i, static_cast<double>(5 * i * i % 11 - 5) / 8);
  }
  t.weight = tensor_of({2}, {1.5, -0.5}), t.bias = tensor_of({2}, {-1, 0.5});
  t.d_weight = t.d_bias = HostTensor::filled(DType::f64, {2}, 0);
  t.lengths = tensor_of({2}, lengths).to(DType::i32);
  ops::batch_norm_forward(cpu.stream, t.forward(cpu.stream, c));
  ops::batch_norm_backward(cpu.stream, t.backward(c));
  expect_close(t.y, golden.y, 1e-15, 4e-16, "y");
  expect_close(t.running_mean, golden.mean, 1e-15, 4e-16, "mean");
  expect_close(t.running_variance, golden.variance, 1e-15, 0, "variance");
  expect_close(t.d_x, golden.d_x, 1e-15, 4e-16, "d_x");
  expect_close(t.d_weight, golden.d_weight, 1e-15, 4e-16, "d_weight");
  expect_close(t.d_bias, golden.d_bias, 0, 0, "d_bias");
  c.training = false;
  t.running_mean = tensor_of({2}, {0.25, -0.5}), t.running_variance = tensor_of({2}, {2, 0.75});
  ops::batch_norm_forward(cpu.stream, t.forward(cpu.stream, c));
  expect_close(t.y, golden.evaluated, 1e-15, 4e-16, "evaluation");
}

TEST(BatchNorm, ValuesOfPyTorch) {  // torch.nn.BatchNorm1d(2, momentum=1) of the counted rows
  check_golden_norm(
      {3, 3},
      {.y = tensor_of({6, 2}, {-3.3366271248133055, 1.112078246018373, -2.42229477162549,
                               0.15404273051135453, 0.3207022879379553, 0.9524056601005365,
                               -0.28885261418725483, 0.7927330741827001, 0.9302571900631654,
                               -0.32497502724215466, -1.20318496737507, 0.3137153164291909}),
       .mean = tensor_of({2}, {-0.08333333333333333, 0.20833333333333334}),
       .variance = tensor_of({2}, {1.8166666666666669, 0.7354166666666668}),
       .d_x = tensor_of({6, 2}, {-0.6927386883957813, -0.17233675840707413, 0.7311868089089436,
                                 0.25013803258627676, -0.025864641709865376, -0.07531219558854292,
                                 0.09157277213943578, 0.02171236722998828, -0.2956907810904691,
                                 -0.3369875015062298, 0.19153453014773625, 0.31278605568558193}),
       .d_weight = tensor_of({2}, {-0.4233020153647292, 0.5056298554064821}),
       .d_bias = tensor_of({2}, {-1, -1}),
       .evaluated =
           tensor_of({6, 2}, {-3.386479420313505, 0.6443366050565802, -2.590986280209003,
                              -0.22168302528290096, -0.20450685989549822, 0.5, -0.734835619965166,
                              0.3556633949434198, 0.32582190017416957, -0.6546928404526415,
                              -1.5303287600696676, -0.07734642022632077})});
}

TEST(BatchNorm, ValuesOfPyTorchForFramesThatCount) {
  check_golden_norm(
      {2, 3},
      {.y = tensor_of({6, 2}, {-3.0581857921143887, 1.2013286825336427, -2.1501626485345113,
                               0.2449713881695845, 0, 0, -0.03144198018146427, 0.8825429177456233,
                               1.1792555445917055, -0.2332072590124446, -0.9394651237613416,
                               0.4043642705635942}),
       .mean = tensor_of({2}, {-0.3, 0.35}),
       .variance = tensor_of({2}, {1.9187499999999997, 0.7687499999999999}),
       .d_x = tensor_of({6, 2}, {-0.6856997097171464, -0.20993048973077608, 0.7251372345276214,
                                 0.24297637331401964, 0, 0, 0.0823231489192779,
                                 -0.005830574584507608, -0.3066187843707249, -0.32753460713363103,
                                 0.18485811064097224, 0.3003192981348951}),
       .d_weight = tensor_of({2}, {-0.3329418193126217, 0.5499054442593333}),
       .d_bias = tensor_of({2}, {-0.75, -0.875}),
       .evaluated = tensor_of({6, 2}, {-3.386479420313505, 0.6443366050565802, -2.590986280209003,
                                       -0.22168302528290096, 0, 0, -0.734835619965166,
                                       0.3556633949434198, 0.32582190017416957, -0.6546928404526415,
                                       -1.5303287600696676, -0.07734642022632077})});
}

TEST(BatchNorm, GradientsAgreeWithFiniteDifferences) {
  CpuBench cpu;
  const BatchNormCase c{DType::f64, 4, 5, 3};
  BatchNormTensors t(c);
  t.x = cleared(t.x), t.d_y = cleared(t.d_y);
  for (HostTensor* g : {&t.d_weight, &t.d_bias}) *g = HostTensor::filled(DType::f64, g->shape(), 0);
  const auto loss = [&] {
    ops::batch_norm_forward(cpu.stream, t.forward(cpu.stream, c));
    return dot(t.y, t.d_y);
  };
  loss();
  ops::batch_norm_backward(cpu.stream, t.backward(c));
  const BatchNormTensors done = t;
  expect_gradient(done.d_x, t.x, loss, "batch norm to x");
  expect_gradient(done.d_weight, t.weight, loss, "batch norm to weight");
  expect_gradient(done.d_bias, t.bias, loss, "batch norm to bias");
  expect_directional(done.d_x, t.x, 11, loss, "batch norm to x");
}

TEST(BatchNorm, LargeMeansDoNotCancel) {
  CpuDevice device;
  // The mean is 1000 standard deviations: squares would leave 24 - 20 bits of the variance.
  for (const bool masked : {false, true})
    check_batch_norm(device, {DType::f32, 5, 67, 17, true, masked, 1000.0});
}

TEST(BatchNorm, NoFrameAtAll) {
  CpuBench cpu;
  const BatchNormCase c{DType::f32, 2, 3, 4};
  BatchNormTensors t(c);
  t.lengths.set(0, 0), t.lengths.set(1, 0);
  t.d_weight = t.d_bias = HostTensor::filled(DType::f32, {4}, 2);
  ops::batch_norm_forward(cpu.stream, t.forward(cpu.stream, c));
  ops::batch_norm_backward(cpu.stream, t.backward(c));
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(t.running_mean[i], 0);
    EXPECT_EQ(t.running_variance[i], 0);
    EXPECT_EQ(t.d_weight[i], 2);
    EXPECT_EQ(t.d_bias[i], 2);
  }
  for (std::int64_t i = 0; i < t.y.count(); ++i) {
    EXPECT_EQ(t.y[i], 0);
    EXPECT_EQ(t.d_x[i], 0);
  }
}

TEST(BatchNorm, ContentsOfThePaddingChangeNoBit) {
  for (const DType dtype : kElementTypes) {
    CpuBench cpu;
    const BatchNormCase c{dtype, 5, 67, 20};
    BatchNormTensors poisoned(c), clean(c);
    clean.x = cleared(clean.x), clean.d_y = cleared(clean.d_y);
    for (BatchNormTensors* t : {&poisoned, &clean}) {
      ops::batch_norm_forward(cpu.stream, t->forward(cpu.stream, c));
      ops::batch_norm_backward(cpu.stream, t->backward(c));
    }
    EXPECT_TRUE(poisoned.y.same_bits(clean.y));
    EXPECT_TRUE(poisoned.running_variance.same_bits(clean.running_variance));
    EXPECT_TRUE(poisoned.d_x.same_bits(clean.d_x));
    EXPECT_TRUE(poisoned.d_weight.same_bits(clean.d_weight));
  }
}

TEST(BatchNorm, BitsDoNotDependOnThreads) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const BatchNormCase c{dtype, 8, 131, 70};
    expect_same_bits_for_any_threads([&] {
      CpuBench cpu;
      BatchNormTensors t(c);
      ops::batch_norm_forward(cpu.stream, t.forward(cpu.stream, c));
      ops::batch_norm_backward(cpu.stream, t.backward(c));
      return std::vector{t.y,   t.mean,     t.rstd,  t.running_mean, t.running_variance,
                         t.d_x, t.d_weight, t.d_bias};
    });
  }
}

TEST(BatchNorm, RefusesWhatDoesNotFitAndCountsOnTheNullDevice) {
  CpuBench cpu;
  const BatchNormCase c{DType::f32, 2, 3, 8};
  BatchNormTensors t(c);
  const auto refuses = [&](const auto& change) {
    auto f = t.forward(cpu.stream, c);
    change(f);
    EXPECT_THROW(ops::batch_norm_forward(cpu.stream, f), Error);
  };
  refuses([](auto& f) { f.tokens = 4; });
  refuses([](auto& f) { f.mean.dtype = DType::bf16; });
  refuses([](auto& f) { f.weight.shape = {7}; });
  refuses([](auto& f) { f.running_mean = {}; });
  refuses([](auto& f) { f.workspace.shape = {8}; });
  auto b = t.backward(c);
  b.d_y.shape = {6, 7};
  EXPECT_THROW(ops::batch_norm_backward(cpu.stream, b), Error);
  b = t.backward(c);
  b.d_bias.dtype = DType::bf16;
  EXPECT_THROW(ops::batch_norm_backward(cpu.stream, b), Error);

  NullDevice nothing;
  WorkCounter work;
  const Stream stream(nothing, &work);
  auto f = t.forward(cpu.stream, c);
  ops::batch_norm_forward(stream, f);
  EXPECT_EQ(work.bytes, 4.0 * (3 * 6 * 8 + 2 * 8 + 4 * 8));
  EXPECT_EQ(work.flops, 8.0 * 6 * 8);
  work = {};
  ops::batch_norm_backward(stream, t.backward(c));
  EXPECT_EQ(work.bytes, 4.0 * (5 * 6 * 8 + 8 + 2 * 8 + 4 * 8));
  EXPECT_EQ(work.flops, 14.0 * 6 * 8);
  EXPECT_TRUE(std::isnan(t.y[0])) << "the null device wrote";
}

}  // namespace
}  // namespace choir::test
