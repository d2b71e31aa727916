// Tests of the algorithms that the library proposes for a product: they are timed and chosen, and
// each has different sums.
#include "kernels/gemm/gemm.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "test/cuda/cuda_fixture.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {
namespace {

constexpr std::int64_t kM = 24, kN = 32, kK = 64;

ops::Product plain() {
  return {.m = kM, .n = kN, .k = kK, .in = DType::bf16, .out = DType::f32, .transpose_b = true};
}

class Products : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    setenv("HOST_CUDA_PACE", "0", 1);
  }
  void TearDown() override { unsetenv("HOST_CUDA_PACE"); }
  static int fastest(const std::vector<double>& seconds) {
    return static_cast<int>(std::min_element(seconds.begin(), seconds.end()) - seconds.begin());
  }
  /// Computes on a device of its own, with the choice; B starts `off` elements behind an aligned
  /// address.
  static std::vector<float> product(const ops::ProductChoices& choices, std::int64_t off = 0) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cuda);
    ops::choose_products(*device, choices);
    Mirror mirror(*device);
    const HostTensor a = HostTensor::normal(DType::bf16, {kM, kK}, 1);
    const HostTensor b = HostTensor::normal(DType::bf16, {kN * kK + 8}, 2);
    HostTensor c(DType::f32, {kM, kN});
    const TensorView right = mirror.in(b).slice(off, kN * kK).reshaped({kN, kK});
    ops::gemm(Stream(*device), mirror.in(a), right, mirror.io(c), {.transpose_b = true});
    mirror.fetch();
    return {static_cast<const float*>(c.data()), static_cast<const float*>(c.data()) + kM * kN};
  }
};

TEST_F(Products, OneWayIsFasterAndWhichHangsOnThePace) {
  const std::vector<double> seconds = ops::time_proposals(stream(), plain());
  ASSERT_EQ(seconds.size(), std::size_t{ops::kMostProposals});
  EXPECT_TRUE(std::isinf(seconds[3]));  // proposed, but cannot be run
  EXPECT_EQ(
      std::count_if(seconds.begin(), seconds.end(), [](double s) { return std::isfinite(s); }), 7);
  EXPECT_EQ(fastest(ops::time_proposals(stream(), plain())), fastest(seconds));
  setenv("HOST_CUDA_PACE", "1", 1);
  EXPECT_NE(fastest(ops::time_proposals(stream(), plain())), fastest(seconds));
}

TEST_F(Products, WhatIsNotOfferedInOneCallIsNotTimed) {
  ops::Product odd = plain();  // no library keeps a pre-activation of rows of 33
  odd.out = DType::bf16, odd.n = kN + 1, odd.epilogue = ops::GemmEpilogue::gelu_tanh;
  odd.pre_activation = true;
  EXPECT_TRUE(ops::time_proposals(stream(), odd).empty());
  odd.n = kN;
  EXPECT_FALSE(ops::time_proposals(stream(), odd).empty());
}

TEST_F(Products, EveryFormIsTimed) {
  ops::Product p = plain();
  p.accumulate = true;
  EXPECT_FALSE(ops::time_proposals(stream(), p).empty());
  p = {.m = kM, .n = kN, .k = kK, .batch = 3, .stride_a = kM * kK, .stride_c = kM * kN};
  EXPECT_FALSE(ops::time_proposals(stream(), p).empty());
  p = {.m = kM, .n = kN, .k = kK, .in = DType::bf16, .out = DType::bf16};
  p.epilogue = ops::GemmEpilogue::gelu_tanh_gradient, p.pre_activation = true;
  EXPECT_FALSE(ops::time_proposals(stream(), p).empty());
  p.out = DType::f32, p.epilogue = ops::GemmEpilogue::none, p.pre_activation = false;
  p.transpose_a = true;
  EXPECT_FALSE(ops::time_proposals(stream(), p).empty());
}

TEST_F(Products, TheChosenWayIsTaken) {
  const std::vector<float> first = product({});
  EXPECT_EQ(product({{plain(), 0}}), first);
  EXPECT_NE(product({{plain(), 5}}), first);
  EXPECT_EQ(product({{plain(), 5}}), product({{plain(), 5}}));
  ops::Product other = plain();
  other.m = kM + 1;
  EXPECT_EQ(product({{other, 5}}), first);
  EXPECT_EQ(product({{plain(), 3}}), first) << "a way that cannot be run";
}

// For other addresses another list is proposed.
TEST_F(Products, AChoiceIsForOperandsThatAreAligned) {
  EXPECT_EQ(product({{plain(), 5}}, 8), product({}, 8));
}

TEST(ProductText, TellsProductsApart) {
  ops::Product p = plain();
  EXPECT_EQ(to_string(p), "bf16 [24,64] x [32,64]^T into f32");
  p.accumulate = p.transpose_a = true;
  EXPECT_EQ(to_string(p), "bf16 [64,24]^T x [32,64]^T into f32, added");
  p.batch = 12, p.stride_b = 7;
  EXPECT_EQ(to_string(p), "bf16 [64,24]^T x [32,64]^T into f32, 12 times, 0 7 0 apart, added");
}

}  // namespace
}  // namespace choir::test
