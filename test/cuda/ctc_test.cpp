#include "kernels/ctc/ctc.hpp"

#include "test/cuda/cuda_fixture.hpp"
#include "test/support/ctc_case.hpp"

namespace choir::test {
namespace {

class CudaCtc : public CudaTest {
 protected:
  void check(DType dtype, std::int64_t batch, std::int64_t frames, std::int64_t labels,
             std::int64_t vocabulary, std::int64_t padding, int skew = 0) {
    const CtcCase c(dtype, batch, frames, labels, vocabulary, padding, 1);
    c.check(device(), CtcErrors::cuda(vocabulary), skew);
  }
};

TEST_F(CudaCtc, MatchesTheReference) {
  for (const DType dtype : kGpuTypes) {
    for (const std::int64_t vocabulary : {2, 29, 300}) check(dtype, 6, 21, 9, vocabulary, 3);
    check(dtype, 4, 9, 0, 11, 1);  // no labels at all
    check(dtype, 4, 5, 3, 1, 1);   // only the blank
  }
  check(DType::bf16, 2, 10, 4, 1025, 0, 1);
}

// Each thread has more than one state.
TEST_F(CudaCtc, ManyLabels) {
  check(DType::f32, 1, 300, 290, 400, 0);
}

TEST_F(CudaCtc, OfABatchTsan) {
  check(DType::f32, 5, 18, 4, 35, 1);
}

TEST_F(CudaCtc, AnUtteranceDoesNotDependOnItsPaddingOrPlace) {
  for (const DType dtype : kGpuTypes) CtcCase(dtype, 5, 17, 6, 37, 5, 1).check_padding(device());
}

TEST_F(CudaCtc, DeviceScaleMultipliesAndBitsRepeat) {
  const CtcCase c(DType::f32, 5, 18, 6, 33, 0, 1);
  HostTensor first = c.logits, second = c.logits, scaled = c.logits, losses(DType::f32, {5});
  c.run(device(), first, losses, c.arguments());
  c.run(device(), second, losses, c.arguments());
  double by = 4;
  ops::Ctc args = c.arguments();
  args.scale /= 4, args.device_scale = &by;
  c.run(device(), scaled, losses, args);
  EXPECT_TRUE(second.same_bits(first));
  EXPECT_TRUE(scaled.same_bits(first));
}

TEST_F(CudaCtc, InfiniteWithoutZeroInfinity) {
  const CtcCase c(DType::f32, 4, 12, 5, 9, 2, 1);
  HostTensor gradient = c.logits, losses(DType::f32, {4}), exact, exact_losses;
  ops::Ctc args = c.arguments();
  args.zero_infinity = false;
  c.run(device(), gradient, losses, args);
  c.reference(exact, exact_losses, false);
  for (int b = 0; b < 4; ++b) EXPECT_EQ(std::isinf(losses[b]), std::isinf(exact_losses[b]));
  EXPECT_TRUE(std::isinf(losses[2]));
  EXPECT_TRUE(std::isnan(gradient[2 * 12 * 11 + 3]));
  EXPECT_EQ(gradient[2 * 12 * 11 + 9], 0);  // padding
}

TEST_F(CudaCtc, WhatNoHostSawIsNoNumber) {
  CtcCase c(DType::f32, 6, 12, 5, 9, 0, 1);
  c.labels.set(2, 8);       // the blank
  c.labels.set(4 * 5, -1);  // nothing
  c.label_lengths.set(4, 2), c.frame_lengths.set(4, 12);
  for (int i = 0; i < 12 * 9; ++i) c.logits.set(4 * 12 * 9 + i, 0);
  c.frame_lengths.set(5, 13);  // behind the frames
  HostTensor gradient = c.logits, losses(DType::f32, {6});
  c.run(device(), gradient, losses, c.arguments());
  for (const int b : {0, 4, 5}) EXPECT_TRUE(std::isnan(losses[b])) << b;
  for (const int b : {1, 2, 3}) EXPECT_TRUE(std::isfinite(losses[b])) << b;
}

TEST_F(CudaCtc, RefusesDoublesAndTooManyLabels) {
  const CtcCase doubles(DType::f64, 2, 4, 1, 5, 0, 1);
  HostTensor gradient = doubles.logits, losses(DType::f64, {2});
  EXPECT_THROW(doubles.run(device(), gradient, losses, doubles.arguments()), Error);
  const CtcCase many(DType::f32, 1, 4, 4097, 5, 0, 1);
  gradient = many.logits, losses = HostTensor(DType::f32, {1});
  EXPECT_THROW(many.run(device(), gradient, losses, many.arguments()), Error);
}

TEST_F(CudaCtc, BestSymbols) {
  for (const DType dtype : kGpuTypes) {
    HostTensor logits = HostTensor::filled(dtype, {4, 70}, -3), best(DType::i32, {4});
    for (const int c : {40, 41, 63}) logits.set(c, 2);
    for (int r = 0; r < 4; ++r) logits.set(70 * r + 66, 9);  // padding
    logits.set(70 + 64, 1), logits.set(70 + 3, NAN);
    for (int c = 0; c < 70; ++c) logits.set(140 + c, -INFINITY), logits.set(210 + c, NAN);
    Mirror mirror(device());
    const TensorView z = mirror.in(logits), out = mirror.io(best);
    ops::best_symbols(stream(), z, 65, out);
    mirror.fetch();
    EXPECT_EQ(best[0], 40);
    EXPECT_EQ(best[1], 64);
    EXPECT_EQ(best[2], 0);
    EXPECT_EQ(best[3], 0);
  }
}

TEST_F(CudaCtc, LogSoftmax) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t vocabulary : {1, 65, 1025}) {
      HostTensor logits = HostTensor::normal(dtype, {3, vocabulary + 2}, 7);
      HostTensor exact = logits.to(DType::f64);
      Mirror mirror(device());
      ops::log_softmax(stream(), mirror.io(logits), vocabulary);
      mirror.fetch();
      ref::log_softmax(exact, vocabulary);
      const double u = unit_roundoff(DType::f32);
      expect_close(logits, exact, unit_roundoff(dtype) + 2 * u,
                   u * (4 * 20 + CtcErrors::cuda(vocabulary).additions + 16), "log_softmax");
    }
}

}  // namespace
}  // namespace choir::test
