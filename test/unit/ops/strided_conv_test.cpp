#include "src/device/null_device.hpp"
#include "test/support/gradcheck.hpp"
#include "test/support/strided_conv_case.hpp"
#include "test/support/threads_case.hpp"

namespace choir::test {
namespace {

TEST(StridedConv, MatchesTheReferenceForRaggedShapesAndAllTypes) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const bool causal : {false, true})
      for (const bool relu : {false, true})
        for (const std::int64_t channels : {1, 7, 16, 33, 300})
          for (const std::int64_t frames : {1, 2, 9})
            for (const std::int64_t frequencies : {1, 4, 5}) {
              StridedConvCase c{dtype, 5, frames, frequencies, 1, channels, causal, relu};
              check_strided_conv(device, c);
              c.in_channels = channels;
              c.masked = frequencies != 5;
              check_strided_conv(device, c);
            }
}

TEST(StridedConv, ManyFrequencies) {
  CpuDevice device;
  for (const bool causal : {false, true})
    check_strided_conv(device, {DType::f32, 2, 5, 301, 1, 17, causal, true});
}

/// Compares a call of [1, 4, 5, in] to two channels with PyTorch: y, then gradients for d_y = ((3
/// i) mod 7 - 3) / 2, with or without a relu.
void check_golden_strided(bool causal, std::int64_t in, const HostTensor& y, const HostTensor& d_x,
                          const HostTensor& d_weight) {
  SCOPED_TRACE(fmt::format("causal {} in {}", causal, in));
  CpuBench cpu;
  const StridedConvCase c{DType::f64, 1, 4, 5, in, 2, causal, in == 1, false};
  StridedConvTensors t(c);
  t.x = lattice(t.x_shape, 7, 13, 4), t.weight = lattice({2, 9}, 5, 11, 8);
  t.bias = lattice({2}, 3, 5, 2), t.d_y = lattice(t.y_shape, 3, 7, 2);
  t.d_weight = HostTensor::filled(DType::f64, {2, 9}, 0), t.d_bias = lattice({2}, 1, 2, 1);
  auto plain = t.forward(c);
  plain.relu = false;
  ops::strided_conv_forward(cpu.stream, plain);
  EXPECT_TRUE(t.y.same_bits(y));
  ops::strided_conv_forward(cpu.stream, t.forward(c));
  for (std::int64_t i = 0; i < y.count(); ++i)
    EXPECT_EQ(t.y[i], in == 1 ? std::max(0.0, y[i]) : y[i]);
  ops::strided_conv_backward(cpu.stream, t.backward(cpu.stream, c));
  // Sums of multiples of 1/64 are exact.
  for (std::int64_t i = 0; i < d_x.count(); ++i) EXPECT_EQ(t.d_x[i], d_x[i]) << "d_x " << i;
  for (std::int64_t i = 0; i < 18; ++i) EXPECT_EQ(t.d_weight[i], d_weight[i]) << "d_weight " << i;
}

TEST(StridedConv, ValuesOfPyTorch) {  // torch.nn.functional.conv2d(pad(x), ..., stride=2), relu
  check_golden_strided(
      false, 1,
      tensor_of({1, 2, 3, 2}, {-2.28125, -0.9375, -2.5625, -1.15625, -2.21875, -0.6875, -1.375,
                               1.21875, 0.09375, 2.28125, 0.1875, 1.625}),
      tensor_of({1, 4, 5, 1},
                {0,       0,      0,      0,      0,     -0.1875, 0.1875, 0.1875, -1.125, 0.125,
                 -0.9375, 0.1875, 0.9375, -0.125, 0.375, 0.375,   0.1875, -0.375, 0.875,  -0.0625}),
      tensor_of({2, 9}, {0.25, -0.625, 0, 0.75, -0.125, 0, -0.375, 0.375, 0, -1.625, 1.625, 0.375,
                         0.75, 0.625, -4.5, 1.5, -0.375, 0.375}));
  check_golden_strided(
      true, 1,
      tensor_of({1, 3, 3, 2},
                {-1.375, -0.0625, -1.96875, -0.78125, -1.90625, -0.625, -2.1875, 1.25, -2.21875,
                 0.96875, -0.90625, 1.8125, -0.84375, 0.8125, -0.1875, 1.25, -0.15625, 0.71875}),
      tensor_of({1, 4, 5, 1}, {0.1875,  0.1875,  -1.4375, 0.125,  -0.625,  0.1875, 0.9375,
                               -0.1875, 0.625,   -0.125,  -0.125, -0.375,  1.3125, -0.3125,
                               0.6875,  -0.0625, 0,       0,      -0.3125, 0.0625}),
      tensor_of({2, 9}, {0, 0, 0, 0, 0, 0, 0, 0, 0, -3.5, 1.625, -0.875, 2.625, -2, 1.375, -0.375,
                         0.75, 0.625}));
  check_golden_strided(
      false, 2,
      tensor_of({1, 2, 3, 2}, {-1.34375, -0.34375, -1.125, 0.03125, -1.25, 0.96875, -0.625, 1.53125,
                               0.125, 2.4375, -1.84375, 2.34375}),
      tensor_of({1, 4, 5, 2}, {-0.75,  0,      0.1875, 0,       0.75,    -0.3125, -0.5,    0.0625,
                               0.5,    -0.625, 0.5625, -0.1875, 0.5,     -0.0625, -0.5625, 0.3125,
                               1.0625, -2.125, -0.375, 0.375,   0.25,    -0.9375, -0.125,  0.1875,
                               0,      0.9375, 0.0625, -0.1875, -0.25,   0.625,   -0.1875, 0.375,
                               0.125,  0.1875, 0,      -0.375,  -0.1875, 1.0625,  0.1875,  -0.25}),
      tensor_of({2, 9}, {-0.25, -0.5, 0, -1.875, 1.375, 1.375, 0.625, 1, 0.375, -3.25, -4.875, 0.75,
                         -1.375, -0.375, 0.25, 4.75, 0.625, 1.25}));
  check_golden_strided(
      true, 2,
      tensor_of({1, 3, 3, 2},
                {-1.375, 0.59375, -1.34375, 0.78125, -1.21875, 1.09375, -1.625, -0.03125, -0.4375,
                 -1, 0.15625, -0.9375, -0.125, 0.71875, -0.8125, 1.1875, -2.78125, 1.34375}),
      tensor_of(
          {1, 4, 5, 2},
          {0.5,    -0.0625, -0.5625, 0.3125, 1.0625,  -2.125,  -0.375, 0.375,   -0.0625, -1,
           -0.125, 0.1875,  0,       0.9375, 0.0625,  -0.1875, -0.25,  0.625,   0.125,   -0.125,
           0.4375, -0.125,  0,       -0.375, -2.0625, 1.3125,  0.1875, -0.3125, 0.8125,  0.6875,
           0.4375, -0.0625, -0.75,   0,      0.1875,  0,       0.75,   -0.3125, -0.375,  0.0625}),
      tensor_of({2, 9}, {1.25, -3.75, -5.625, 0.625, 0.5, 1.25, -4, -1.875, 1.375, 1.125, 1.625,
                         1.5, 0.375, -4, -3.75, -1.625, -1.375, -0.375}));
}

TEST(StridedConv, GradientsAgreeWithFiniteDifferences) {
  for (const bool causal : {false, true})
    for (const std::int64_t in : {1, 5}) {
      CpuBench cpu;
      const StridedConvCase c{DType::f64, 4, 5, 4, in, 5, causal, in == 1};
      StridedConvTensors t(c);
      t.x = cleared(t.x), t.d_y = cleared(t.d_y);
      for (HostTensor* g : {&t.d_weight, &t.d_bias})
        *g = HostTensor::filled(DType::f64, g->shape(), 0);
      const auto loss = [&] {
        ops::strided_conv_forward(cpu.stream, t.forward(c));
        return dot(t.y, t.d_y);
      };
      loss();
      ops::strided_conv_backward(cpu.stream, t.backward(cpu.stream, c));
      const StridedConvTensors done = t;
      expect_gradient(done.d_x, t.x, loss, "strided convolution to x");
      expect_gradient(done.d_weight, t.weight, loss, "strided convolution to weight");
      expect_gradient(done.d_bias, t.bias, loss, "strided convolution to bias");
      expect_directional(done.d_x, t.x, 11, loss, "strided convolution to x");
    }
}

TEST(StridedConv, IsLinearInItsInputAndItsWeight) {
  for (const bool causal : {false, true})
    for (const std::int64_t in : {1, 33}) {
      CpuBench cpu;
      const StridedConvCase c{DType::f64, 3, 40, 21, in, 33, causal, false};
      StridedConvTensors t(c);
      t.x = cleared(t.x), t.d_y = cleared(t.d_y);
      t.bias = HostTensor::filled(DType::f64, {33}, 0);
      t.d_weight = HostTensor::filled(DType::f64, {33, 9}, 0);
      ops::strided_conv_forward(cpu.stream, t.forward(c));
      ops::strided_conv_backward(cpu.stream, t.backward(cpu.stream, c));
      const double forward = dot(t.y, t.d_y);
      // Sums of 10^5 products of order 1, each with an error of 2^-53.
      EXPECT_NEAR(forward, dot(t.x, t.d_x), 1e-9);
      EXPECT_NEAR(forward, dot(t.weight, t.d_weight), 1e-9);
    }
}

TEST(StridedConv, PaddingChangesNoBit) {
  for (const DType dtype : kElementTypes)
    for (const bool causal : {false, true})
      for (const std::int64_t in : {1, 20}) {
        CpuBench cpu;
        const StridedConvCase wide{dtype, 2, 13, 6, in, 20, causal, true};
        StridedConvTensors padded(wide);
        const auto n = static_cast<std::int64_t>(7), out = ops::strided_size(n, causal);
        padded.x = HostTensor::normal(dtype, padded.x_shape, 1);
        padded.d_y = HostTensor::normal(dtype, padded.y_shape, 4);
        for (std::int64_t b = 0; b < 2; ++b) {
          padded.in_lengths.set(b, static_cast<double>(n));
          padded.out_lengths.set(b, static_cast<double>(out));
        }
        const StridedConvCase narrow{dtype, 2, n, 6, in, 20, causal, true, false};
        StridedConvTensors tight(narrow);
        tight.x = first_frames(padded.x, n), tight.d_y = first_frames(padded.d_y, out);
        ops::strided_conv_forward(cpu.stream, padded.forward(wide));
        ops::strided_conv_backward(cpu.stream, padded.backward(cpu.stream, wide));
        ops::strided_conv_forward(cpu.stream, tight.forward(narrow));
        ops::strided_conv_backward(cpu.stream, tight.backward(cpu.stream, narrow));
        EXPECT_TRUE(first_frames(padded.y, out).same_bits(tight.y));
        EXPECT_TRUE(first_frames(padded.d_x, n).same_bits(tight.d_x));
      }
}

TEST(StridedConv, BitsDoNotDependOnThreads) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t in : {1, 32}) {
      const StridedConvCase c{dtype, 4, 131, 20, in, 32, false, true};
      expect_same_bits_for_any_threads([&] {
        CpuBench cpu;
        StridedConvTensors t(c);
        ops::strided_conv_forward(cpu.stream, t.forward(c));
        ops::strided_conv_backward(cpu.stream, t.backward(cpu.stream, c));
        return std::vector{t.y, t.d_x, t.d_weight, t.d_bias};
      });
    }
}

TEST(StridedConv, RefusesWhatDoesNotFitAndCountsOnTheNullDevice) {
  CpuBench cpu;
  const StridedConvCase c{DType::f32, 2, 5, 4, 1, 8, false, true, false};
  StridedConvTensors t(c);
  const auto refuses = [&](const auto& change) {
    auto f = t.forward(c);
    change(f);
    EXPECT_THROW(ops::strided_conv_forward(cpu.stream, f), Error);
  };
  refuses([](auto& f) { f.causal = true; });
  refuses([](auto& f) { f.x.shape = {2, 5, 2, 2}; });
  refuses([](auto& f) { f.weight.shape = {8, 8}; });
  refuses([](auto& f) { f.bias = {}; });
  refuses([](auto& f) { f.y.dtype = DType::bf16; });
  auto b = t.backward(cpu.stream, c);
  b.y = {};
  EXPECT_THROW(ops::strided_conv_backward(cpu.stream, b), Error);
  b = t.backward(cpu.stream, c);
  b.workspace.shape = {8};
  EXPECT_THROW(ops::strided_conv_backward(cpu.stream, b), Error);
  b = t.backward(cpu.stream, c);
  b.d_weight.dtype = DType::bf16;
  EXPECT_THROW(ops::strided_conv_backward(cpu.stream, b), Error);

  NullDevice nothing;
  WorkCounter work;
  const Stream stream(nothing, &work);
  ops::strided_conv_forward(stream, t.forward(c));
  EXPECT_EQ(work.bytes, 4.0 * (2 * 5 * 4 + 2 * 3 * 2 * 8 + 8 * 9 + 8));
  EXPECT_EQ(work.flops, 18.0 * 2 * 3 * 2 * 8);
  b = t.backward(cpu.stream, c);
  b.d_x = {};  // the features have no gradient
  work = {};
  ops::strided_conv_backward(stream, b);
  EXPECT_EQ(work.bytes, 4.0 * (2 * 5 * 4 + 2 * 2 * 3 * 2 * 8 + 8 * 9 + 2 * 8 * 9 + 2 * 8));
  EXPECT_EQ(work.flops, 18.0 * 2 * 3 * 2 * 8);
  EXPECT_TRUE(std::isnan(t.y[0])) << "the null device wrote";
}

}  // namespace
}  // namespace choir::test
