#include "kernels/cross_entropy/cross_entropy.hpp"

#include "test/cuda/cuda_fixture.hpp"
#include "test/support/cross_entropy_case.hpp"

namespace choir::test {
namespace {

class CudaCrossEntropy : public CudaTest {
 protected:
  void check(DType dtype, std::int64_t rows, std::int64_t vocabulary, std::int64_t padding,
             double spread, double smoothing = 0, int skew = 0) {
    const CrossEntropyCase c(dtype, rows, vocabulary, padding, spread, smoothing);
    c.check(device(), CrossEntropyErrors::cuda(vocabulary), skew);
  }
  /// One call on tensors of the host.
  void run(HostTensor& logits, const HostTensor& targets, HostTensor& losses,
           ops::CrossEntropy args) {
    Mirror mirror(device());
    args.logits = mirror.io(logits), args.targets = mirror.in(targets);
    args.losses = mirror.io(losses);
    args.device_scale = args.device_scale == nullptr
                            ? nullptr
                            : mirror.object(*const_cast<double*>(args.device_scale));
    ops::cross_entropy(stream(), args);
    mirror.fetch();
  }
};

TEST_F(CudaCrossEntropy, MatchesTheReferenceInEveryTeamSize) {
  for (const DType dtype : kGpuTypes) {
    for (const std::int64_t vocabulary : {1, 2, 7, 65, 257, 2048})
      for (const std::int64_t padding : {0, 3}) check(dtype, 5, vocabulary, padding, 2);
    check(dtype, 3, 2049, 0, 2);
    check(dtype, 3, 4100, 28, 2);
    check(dtype, 2, 16385, 3, 2);
  }
}

TEST_F(CudaCrossEntropy, RowsOfWordVocabularies) {
  check(DType::bf16, 3, 50257, 47, 3);  // aligned rows, longer than the kept part
  check(DType::bf16, 3, 50257, 0, 3);   // rows that start anywhere
  check(DType::f32, 2, 37001, 0, 3);    // a row with a multiprocessor of its own
  check(DType::bf16, 1, 128256, 0, 3, 0.1);
}

TEST_F(CudaCrossEntropy, AnyAlignment) {
  for (const DType dtype : kGpuTypes)
    for (int skew = 1; skew < 8; skew += 2) check(dtype, 3, 301, 2, 2, 0, skew);
}

TEST_F(CudaCrossEntropy, SmoothsLabels) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t vocabulary : {1, 65, 3000})
      for (const double smoothing : {0.1, 0.9}) check(dtype, 4, vocabulary, 3, 2, smoothing);
}

TEST_F(CudaCrossEntropy, RowsHaveWeights) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t vocabulary : {2, 65, 3001})
      for (const double smoothing : {0.0, 0.2}) {
        const CrossEntropyCase c(dtype, 6, vocabulary, 3, 2, smoothing, true);
        c.check(device(), CrossEntropyErrors::cuda(vocabulary));
        c.check_parallel(device(), 2, CrossEntropyErrors::cuda(vocabulary));
      }
}

TEST_F(CudaCrossEntropy, AddsTheSquareOfTheLogSum) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t vocabulary : {2, 65, 3001})
      for (const bool weighted : {false, true}) {
        const CrossEntropyCase c(dtype, 6, vocabulary, 3, 2, 0.2, weighted, 0.03);
        c.check(device(), CrossEntropyErrors::cuda(vocabulary));
        c.check_parallel(device(), 2, CrossEntropyErrors::cuda(vocabulary));
      }
}

TEST_F(CudaCrossEntropy, MapsLogits) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t vocabulary : {2, 65, 3001})
      for (const ops::LogitMap map :
           {ops::LogitMap{.softcap = 3}, {.scale = 0.25}, {.scale = 1.5, .softcap = 4}}) {
        const CrossEntropyCase c(dtype, 6, vocabulary, 3, 2, 0.1, true, 0.01, map);
        c.check(device(), CrossEntropyErrors::cuda(vocabulary));
        c.check_parallel(device(), 2, CrossEntropyErrors::cuda(vocabulary));
      }
}

TEST_F(CudaCrossEntropy, MapsLogitsInPlace) {
  for (const DType dtype : kGpuTypes) {
    HostTensor logits = HostTensor::normal(dtype, {3, 37}, 1, 3), exact = logits.to(DType::f64);
    const ops::LogitMap map{.scale = 0.7, .softcap = 2};
    Mirror mirror(device());
    ops::map_logits(stream(), map, mirror.io(logits));
    mirror.fetch();
    ref::map_logits(map, exact);
    expect_close(logits, exact, unit_roundoff(dtype), 8 * 0x1p-24, "values");
  }
}

TEST_F(CudaCrossEntropy, BlockTsan) {
  check(DType::bf16, 2, 2100, 3, 2, 0.1);
}
TEST_F(CudaCrossEntropy, WarpTsan) {
  check(DType::f32, 9, 65, 3, 2, 0.1);
}

TEST_F(CudaCrossEntropy, ExtremeLogitsAreExact) {
  for (const DType dtype : kGpuTypes) {
    HostTensor logits = HostTensor::filled(dtype, {2, 6000}, -1e4), losses(DType::f32, {2});
    HostTensor targets(DType::i32, {2});
    targets.set(0, 5000), targets.set(1, 17);
    logits.set(5000, 1e4), logits.set(6000 + 5000, 1e4);
    const double gap = logits[5000] - logits[0];
    run(logits, targets, losses, {.vocabulary = 6000});
    EXPECT_EQ(losses[0], 0);
    EXPECT_EQ(losses[1], gap);
    EXPECT_EQ(logits[5000], 0);
    EXPECT_EQ(logits[6000 + 17], -1);
    EXPECT_EQ(logits[6000 + 5000], 1);
    EXPECT_EQ(logits[3], 0);
  }
}

TEST_F(CudaCrossEntropy, MaskedLogitsAreFineAndNanIsNotHidden) {
  for (const std::int64_t vocabulary : {40, 9000}) {
    HostTensor logits = HostTensor::filled(DType::f32, {3, vocabulary}, -INFINITY);
    HostTensor losses(DType::f32, {3}), targets = HostTensor::filled(DType::i32, {3}, 35);
    logits.set(35, 1), logits.set(36, 1);
    logits.set(vocabulary + 35, 1), logits.set(vocabulary + 3, NAN);
    targets.set(2, static_cast<double>(vocabulary));  // no such column
    run(logits, targets, losses, {.vocabulary = vocabulary});
    EXPECT_NEAR(losses[0], std::log(2.0), 1e-7);
    EXPECT_EQ(logits[36], 0.5);
    EXPECT_TRUE(std::isnan(losses[1]));
    EXPECT_TRUE(std::isnan(losses[2]));
  }
}

TEST_F(CudaCrossEntropy, RowsWithoutTargetGiveZeroWhateverTheyHold) {
  for (const std::int64_t columns : {40, 3001}) {
    HostTensor logits(DType::bf16, {2, columns}), losses(DType::f32, {2});  // NaN everywhere
    run(logits, HostTensor::filled(DType::i32, {2}, -1), losses, {.vocabulary = columns - 7});
    for (int r = 0; r < 2; ++r) EXPECT_EQ(losses[r], 0);
    for (std::int64_t i = 0; i < logits.count(); ++i) ASSERT_EQ(logits[i], 0);
  }
}

TEST_F(CudaCrossEntropy, DeviceScaleMultipliesAndBitsRepeat) {
  const HostTensor start = HostTensor::normal(DType::f32, {3, 3000}, 1);
  const HostTensor targets = HostTensor::integers({3}, 2, 3000);
  HostTensor losses(DType::f32, {3}), first = start, second = start, scaled = start;
  double by = 4;
  run(first, targets, losses, {.vocabulary = 3000, .scale = 0.5});
  run(second, targets, losses, {.vocabulary = 3000, .scale = 0.5});
  run(scaled, targets, losses, {.vocabulary = 3000, .scale = 0.125, .device_scale = &by});
  EXPECT_TRUE(second.same_bits(first));
  EXPECT_TRUE(scaled.same_bits(first));
  EXPECT_FALSE(scaled.same_bits(start));
}

TEST_F(CudaCrossEntropy, RefusesDoubles) {
  HostTensor logits = HostTensor::normal(DType::f64, {1, 8}, 1), losses(DType::f64, {1});
  EXPECT_THROW(run(logits, HostTensor::filled(DType::i32, {1}, 0), losses, {.vocabulary = 8}),
               Error);
}

class CudaParallelCrossEntropy : public CudaTest {};

TEST_F(CudaParallelCrossEntropy, MatchesTheReferenceOfTheWholeVocabulary) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t vocabulary : {1, 7, 65, 997})
      for (const double smoothing : {0.0, 0.1})
        for (const int ranks : {1, 2, 3, 5})
          CrossEntropyCase(dtype, 4, vocabulary, 13, 2, smoothing)
              .check_parallel(device(), ranks, CrossEntropyErrors::cuda(vocabulary));
  CrossEntropyCase(DType::bf16, 3, 50257, 47, 3)
      .check_parallel(device(), 2, CrossEntropyErrors::cuda(50257));
}

TEST_F(CudaParallelCrossEntropy, TwoRanksTsan) {
  CrossEntropyCase(DType::bf16, 3, 4100, 3, 2, 0.1)
      .check_parallel(device(), 2, CrossEntropyErrors::cuda(4100));
}

}  // namespace
}  // namespace choir::test
