#include "src/device/null_device.hpp"
#include "test/support/depthwise_conv_case.hpp"
#include "test/support/gradcheck.hpp"
#include "test/support/threads_case.hpp"

namespace choir::test {
namespace {

TEST(DepthwiseConv, MatchesTheReferenceForRaggedShapesAndAllTypes) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t taps : {1, 2, 9, 10, 31, 64})
      for (const std::int64_t left : {(taps - 1) / 2, taps - 1, std::int64_t{0}})
        for (const std::int64_t channels : {1, 17, 130})
          for (const std::int64_t frames : {1, 7, 40, 65})
            check_depthwise_conv(device, {dtype, 5, frames, channels, taps, left, frames != 7,
                                          frames == 40 && left > 0, frames != 65});
}

/// 9 taps over [1, 6, 2], d_y = ((3 i) mod 7 - 3) / 2.
void check_golden_depthwise(std::int64_t left, const HostTensor& y, const HostTensor& d_x,
                            const HostTensor& d_weight) {
  SCOPED_TRACE(left);
  CpuBench cpu;
  const DepthwiseConvCase c{DType::f64, 1, 6, 2, 9, left, true, false, false};
  DepthwiseConvTensors t(c);
  t.x = lattice(t.shape, 7, 13, 4), t.weight = lattice({2, 9}, 5, 11, 8);
  t.bias = lattice({2}, 3, 5, 2), t.d_y = lattice(t.shape, 3, 7, 2);
  for (HostTensor* g : {&t.d_weight, &t.d_bias}) *g = HostTensor::filled(DType::f64, g->shape(), 0);
  ops::depthwise_conv_forward(cpu.stream, t.forward(c));
  ops::depthwise_conv_backward(cpu.stream, t.backward(cpu.stream, c));
  // Sums of multiples of 1/64 are exact.
  for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(t.y[i], y[i]) << "y " << i;
  for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(t.d_x[i], d_x[i]) << "d_x " << i;
  for (std::int64_t i = 0; i < 18; ++i) EXPECT_EQ(t.d_weight[i], d_weight[i]) << "d_weight " << i;
}

TEST(DepthwiseConv, ValuesOfPyTorch) {  // torch.nn.functional.conv1d(pad(x, (left, 8 - left)), ...)
  check_golden_depthwise(
      4,
      tensor_of({1, 6, 2}, {-1.65625, 1.1875, -1.34375, 1.46875, -2.1875, 0.9375, -2, 1.4375,
                            -0.78125, 0.5625, -0.75, 0.65625}),
      tensor_of({1, 6, 2}, {-0.3125, -0.3125, 1.625, 0.3125, -0.5, -1.375, 0.8125, -1.6875, -0.625,
                            0.75, -0.0625, -0.25}),
      tensor_of({2, 9}, {0.625, -0.25, -1.75, -3.75, -0.875, -0.625, -0.25, 0.125, 0.375, 0.875,
                         1.125, 1.125, 1, 0.875, -1, -4, -2.125, -0.75}));
  check_golden_depthwise(
      8,
      tensor_of({1, 6, 2}, {-1.375, 0.59375, -0.75, 0.625, -1.34375, 0.78125, -0.90625, 0.90625,
                            -1.65625, 1.1875, -1.34375, 1.46875}),
      tensor_of({1, 6, 2}, {-0.625, 0.75, -0.0625, -0.25, 0.1875, 0.625, -0.0625, -0.4375, 0.1875,
                            0.3125, -0.125, 0.375}),
      tensor_of({2, 9}, {0, 0, 0, 0.75, 0.625, -0.25, -1.75, -3.75, -0.875, 0, 0, 0, 0.25, 0.875,
                         1.125, 1.125, 1, 0.875}));
}

TEST(DepthwiseConv, GradientsAgreeWithFiniteDifferences) {
  for (const std::int64_t left : {2, 4}) {
    CpuBench cpu;
    const DepthwiseConvCase c{DType::f64, 4, 7, 5, 5, left};
    DepthwiseConvTensors t(c);
    t.x = cleared(t.x), t.d_y = cleared(t.d_y);
    for (HostTensor* g : {&t.d_weight, &t.d_bias})
      *g = HostTensor::filled(DType::f64, g->shape(), 0);
    const auto loss = [&] {
      ops::depthwise_conv_forward(cpu.stream, t.forward(c));
      return dot(t.y, t.d_y);
    };
    loss();
    ops::depthwise_conv_backward(cpu.stream, t.backward(cpu.stream, c));
    const DepthwiseConvTensors done = t;
    expect_gradient(done.d_x, t.x, loss, "depthwise convolution to x");
    expect_gradient(done.d_weight, t.weight, loss, "depthwise convolution to weight");
    expect_gradient(done.d_bias, t.bias, loss, "depthwise convolution to bias");
    expect_directional(done.d_x, t.x, 11, loss, "depthwise convolution to x");
  }
}

TEST(DepthwiseConv, IsLinearInItsInputAndItsWeight) {
  for (const std::int64_t left : {4, 8}) {
    CpuBench cpu;
    const DepthwiseConvCase c{DType::f64, 5, 70, 33, 9, left, false};
    DepthwiseConvTensors t(c);
    t.x = cleared(t.x), t.d_y = cleared(t.d_y);
    t.d_weight = HostTensor::filled(DType::f64, {33, 9}, 0);
    ops::depthwise_conv_forward(cpu.stream, t.forward(c));
    ops::depthwise_conv_backward(cpu.stream, t.backward(cpu.stream, c));
    const double forward = dot(t.y, t.d_y);
    // Sums of 10^5 products of order 1, each with an error of 2^-53.
    EXPECT_NEAR(forward, dot(t.x, t.d_x), 1e-9);
    EXPECT_NEAR(forward, dot(t.weight, t.d_weight), 1e-9);
  }
}

TEST(DepthwiseConv, PaddingChangesNoBit) {
  for (const DType dtype : kElementTypes)
    for (const std::int64_t left : {4, 8}) {
      CpuBench cpu;
      const std::int64_t n = 37;
      const DepthwiseConvCase wide{dtype, 2, 70, 20, 9, left},
          narrow{dtype, 2, n, 20, 9, left, true, false, false};
      DepthwiseConvTensors padded(wide), tight(narrow);
      padded.x = HostTensor::normal(dtype, padded.shape, 1);
      padded.d_y = HostTensor::normal(dtype, padded.shape, 4);
      for (std::int64_t b = 0; b < 2; ++b) padded.lengths.set(b, static_cast<double>(n));
      tight.x = first_frames(padded.x, n), tight.d_y = first_frames(padded.d_y, n);
      ops::depthwise_conv_forward(cpu.stream, padded.forward(wide));
      ops::depthwise_conv_backward(cpu.stream, padded.backward(cpu.stream, wide));
      ops::depthwise_conv_forward(cpu.stream, tight.forward(narrow));
      ops::depthwise_conv_backward(cpu.stream, tight.backward(cpu.stream, narrow));
      EXPECT_TRUE(first_frames(padded.y, n).same_bits(tight.y));
      EXPECT_TRUE(first_frames(padded.d_x, n).same_bits(tight.d_x));
    }
}

TEST(DepthwiseConv, BitsDoNotDependOnThreads) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const DepthwiseConvCase c{dtype, 4, 131, 70, 9, 4};
    expect_same_bits_for_any_threads([&] {
      CpuBench cpu;
      DepthwiseConvTensors t(c);
      ops::depthwise_conv_forward(cpu.stream, t.forward(c));
      ops::depthwise_conv_backward(cpu.stream, t.backward(cpu.stream, c));
      return std::vector{t.y, t.d_x, t.d_weight, t.d_bias};
    });
  }
}

TEST(DepthwiseConv, HistoryContinuesASampleBitByBit) {
  CpuBench cpu;
  const std::int64_t left = 8, frames = 50, cut = 21;
  const DepthwiseConvCase whole{DType::f32, 1, frames, 20, 9, left, true, false, false},
      rest{DType::f32, 1, frames - cut, 20, 9, left, true, true, false};
  DepthwiseConvTensors all(whole), later(rest);
  for (std::int64_t i = 0; i < later.x.count(); ++i) later.x.set(i, all.x[cut * 20 + i]);
  for (std::int64_t i = 0; i < later.history.count(); ++i)
    later.history.set(i, all.x[(cut - left) * 20 + i]);
  ops::depthwise_conv_forward(cpu.stream, all.forward(whole));
  ops::depthwise_conv_forward(cpu.stream, later.forward(rest));
  for (std::int64_t i = 0; i < later.y.count(); ++i)
    ASSERT_EQ(later.y[i], all.y[cut * 20 + i]) << i;
}

TEST(DepthwiseConv, RefusesWhatDoesNotFitAndCountsOnTheNullDevice) {
  CpuBench cpu;
  const DepthwiseConvCase c{DType::f32, 2, 5, 8, 3, 1, true, false, false};
  DepthwiseConvTensors t(c);
  const auto refuses = [&](const auto& change) {
    auto f = t.forward(c);
    change(f);
    EXPECT_THROW(ops::depthwise_conv_forward(cpu.stream, f), Error);
  };
  refuses([](auto& f) { f.left = 3; });
  refuses([](auto& f) { f.left = -1; });
  refuses([](auto& f) { f.weight.shape = {4, 6}; });
  refuses([](auto& f) { f.y = f.x; });
  refuses([](auto& f) { f.y.dtype = DType::bf16; });
  refuses([](auto& f) { f.bias.shape = {7}; });
  refuses([](auto& f) { f.history = f.bias; });
  const HostTensor wide(DType::f32, {8, ops::kWidestDepthwise + 1});
  refuses([&](auto& f) { f.weight = wide; });
  auto b = t.backward(cpu.stream, c);
  b.d_x = b.d_y;
  EXPECT_THROW(ops::depthwise_conv_backward(cpu.stream, b), Error);
  b = t.backward(cpu.stream, c);
  b.workspace.shape = {8};
  EXPECT_THROW(ops::depthwise_conv_backward(cpu.stream, b), Error);

  NullDevice nothing;
  WorkCounter work;
  const Stream stream(nothing, &work);
  ops::depthwise_conv_forward(stream, t.forward(c));
  EXPECT_EQ(work.bytes, 4.0 * (2 * 2 * 5 * 8 + 8 * 3 + 8));
  EXPECT_EQ(work.flops, 2.0 * 3 * 2 * 5 * 8);
  work = {};
  ops::depthwise_conv_backward(stream, t.backward(cpu.stream, c));
  EXPECT_EQ(work.bytes, 4.0 * (3 * 2 * 5 * 8 + 8 * 3 + 2 * 8 * 3 + 2 * 8));
  EXPECT_EQ(work.flops, 4.0 * 3 * 2 * 5 * 8);
  EXPECT_TRUE(std::isnan(t.y[0])) << "the null device wrote";
}

}  // namespace
}  // namespace choir::test
