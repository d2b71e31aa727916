// Tests of dropout as a layer: the mask belongs to the sample and to the layer, not to the batch.
#include "choir/nn/layers/dropout.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "src/device/cpu_device.hpp"

namespace choir {
namespace {

struct DropoutTest : ::testing::Test {
  static constexpr std::int64_t kTokens = 6, kWidth = 40;
  CpuDevice device;
  Arena arena{device, 1 << 20};
  Pass pass{Stream(device), arena, precision_of("fp64"), 1};

  /// The result of the layer for ones.
  std::vector<double> mask(const Dropout& layer, Mode mode, std::int64_t first, std::int64_t batch,
                           bool backward = false) {
    pass.begin(mode, {.batch = batch, .tokens = kTokens}, first);
    Tensor x = pass.allocate({batch * kTokens, kWidth}, "x");
    std::fill_n(x.as<double>(), x.count(), 1.0);
    if (backward)
      x = layer.backward(pass, x);
    else
      layer.forward(pass, x);
    return {x.as<double>(), x.as<double>() + x.count()};
  }
};

TEST_F(DropoutTest, MaskFollowsTheSample) {
  const Dropout layer("a", 0.3);
  const auto all = mask(layer, Mode::train, 10, 4);
  for (std::int64_t s = 0; s < 4; ++s) {
    const auto alone = mask(layer, Mode::train, 10 + s, 1);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + s * kTokens * kWidth)) << s;
  }
  EXPECT_EQ(all, mask(layer, Mode::train, 10, 4, true)) << "backward draws the same mask";
  EXPECT_NE(all, mask(Dropout("b", 0.3), Mode::train, 10, 4)) << "every layer its own";
  EXPECT_NE(all, mask(layer, Mode::train, 14, 4)) << "every step its own";
}

TEST_F(DropoutTest, KeepsTheRightShare) {
  const auto all = mask(Dropout("a", 0.3), Mode::train, 0, 16);
  double kept = 0;
  for (const double v : all) {
    EXPECT_TRUE(v == 0 || v == 1 / 0.7) << v;
    kept += v > 0;
  }
  const auto n = static_cast<double>(all.size());
  EXPECT_NEAR(kept / n, 0.7, 5 * std::sqrt(0.21 / n));
}

TEST_F(DropoutTest, OnlyInTraining) {
  const std::vector<double> ones(static_cast<std::size_t>(2 * kTokens * kWidth), 1.0);
  EXPECT_EQ(mask(Dropout("a", 0.5), Mode::evaluate, 0, 2), ones);
  EXPECT_EQ(mask(Dropout("a", 0.0), Mode::train, 0, 2), ones);
  EXPECT_EQ(mask(Dropout("a", 0.0), Mode::train, 0, 2, true), ones);
}

}  // namespace
}  // namespace choir
