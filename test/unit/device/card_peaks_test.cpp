// Tests of peaks of GPUs: by name, against data sheets; and for new names from multiprocessors and
// clock.
#include <gtest/gtest.h>

#include "src/device/cuda.hpp"

namespace choir::cuda {
namespace {

double teraflops(const char* name, int major, int minor, int multiprocessors, double gigahertz) {
  Card card;
  card.name = name, card.major = major, card.minor = minor, card.multiprocessors = multiprocessors;
  return 1e-12 * peak_bf16_flops(card, 1e9 * gigahertz);
}

// The highest clock of an H100 would give 1071.
TEST(CardPeaks, BoardsForDataCentresHaveTheMakersFigure) {
  EXPECT_EQ(teraflops("NVIDIA H100 80GB HBM3", 9, 0, 132, 1.98), 989);
  EXPECT_EQ(teraflops("NVIDIA H100 PCIe", 9, 0, 114, 1.755), 756);
  EXPECT_EQ(teraflops("NVIDIA H100 NVL", 9, 0, 132, 1.785), 835.5);
  EXPECT_EQ(teraflops("NVIDIA H200", 9, 0, 132, 1.98), 989);
  EXPECT_EQ(teraflops("NVIDIA H20", 9, 0, 78, 1.98), 148);
  EXPECT_EQ(teraflops("NVIDIA GH200 480GB", 9, 0, 132, 1.98), 989);
  EXPECT_EQ(teraflops("NVIDIA A100-SXM4-80GB", 8, 0, 108, 1.41), 312);
  EXPECT_EQ(teraflops("NVIDIA A10", 8, 6, 72, 1.695), 125);
  EXPECT_EQ(teraflops("NVIDIA L4", 8, 9, 58, 2.04), 121);
  EXPECT_EQ(teraflops("NVIDIA L40S", 8, 9, 142, 2.52), 362);
  EXPECT_EQ(teraflops("NVIDIA B200", 10, 0, 148, 1.965), 2250);
}

// Data sheets: 71, 165 and 210 on GeForce, 155 on RTX A6000; clocks are those of the sheets.
TEST(CardPeaks, OthersAreReckonedFromTheirClock) {
  EXPECT_NEAR(teraflops("NVIDIA GeForce RTX 3090", 8, 6, 82, 1.695), 71, 1);
  EXPECT_NEAR(teraflops("NVIDIA GeForce RTX 4090", 8, 9, 128, 2.52), 165, 1);
  EXPECT_NEAR(teraflops("NVIDIA GeForce RTX 5090", 12, 0, 170, 2.407), 210, 1);
  EXPECT_NEAR(teraflops("NVIDIA RTX A6000", 8, 6, 84, 1.8), 155, 1);
  EXPECT_EQ(teraflops("a card of the future", 15, 0, 100, 2), 0);
}

}  // namespace
}  // namespace choir::cuda
