#include "kernels/sums/sums.hpp"

#include <omp.h>

#include "kernels/sums/sums.hpp"
#include "test/support/op_test.hpp"

namespace choir {
namespace {

constexpr std::int64_t kCounts[] = {1,  2,   3,   7,    16,    17,    63,   64,
                                    65, 128, 129, 1000, 16384, 16385, 70001};

/// Runs `body` with 1 to 4 threads and restores the number of threads.
template <class Body>
void with_threads(Body body) {
  const int before = omp_get_max_threads();
  for (int n = 1; n <= 4; ++n) omp_set_num_threads(n), body(n);
  omp_set_num_threads(before);
}

TEST(Reduce, SumOfSquaresMatchesAndDoesNotDependOnThreads) {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const std::int64_t n : kCounts) {
      const HostTensor x = HostTensor::normal(dtype, {n}, 1);
      const std::int64_t chunks = (n + ops::kNormChunk - 1) / ops::kNormChunk;
      HostTensor exact(DType::f64, {chunks}), first(DType::f64, {chunks});
      ref::sum_of_squares(x.to(DType::f64), exact);
      with_threads([&](int threads) {
        CpuBench cpu;
        HostTensor partials(DType::f64, {chunks});
        ops::sum_of_squares(cpu.stream, x, partials);
        // All terms positive: the reference's own n roundings dominate.
        expect_close(partials, exact, 16384 * 0x1p-53, 0, "partials");
        if (threads == 1) first = partials;
        EXPECT_TRUE(partials.same_bits(first)) << threads << " threads, n " << n;
      });
    }
}

TEST(Reduce, TreeSumIsTheTreeBitForBit) {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const std::int64_t n : kCounts) {
      const HostTensor x = HostTensor::normal(dtype, {n}, 1);
      HostTensor total(DType::f64, {1}), exact(DType::f64, {1});
      ref::tree_sum(x.to(DType::f64), exact);
      with_threads([&](int threads) {
        CpuBench cpu;
        ops::tree_sum(cpu.stream, x, total);
        EXPECT_EQ(total[0], exact[0]) << threads << " threads, n " << n;
      });
    }
}

TEST(Reduce, TreeSumOfHalvesIsTheSumOfTheirTrees) {
  CpuBench cpu;
  const HostTensor x = HostTensor::normal(DType::f64, {4096}, 1);
  HostTensor whole(DType::f64, {1}), halves(DType::f64, {2}), joined(DType::f64, {1});
  ops::tree_sum(cpu.stream, x, whole);
  for (int half = 0; half < 2; ++half)
    ops::tree_sum(cpu.stream, x.view().slice(2048 * half, 2048), halves.view().slice(half, 1));
  ops::tree_sum(cpu.stream, halves, joined);
  EXPECT_EQ(whole[0], joined[0]);
}

TEST(Reduce, BiasGradientMatchesAndDoesNotDependOnThreads) {
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {1, 3, 7, 16, 17, 65, 128, 768})
      for (const std::int64_t rows : {1, 3, 17, 100, 1100}) {
        SCOPED_TRACE(fmt::format("{} [{}, {}]", name_of(dtype), rows, width));
        const HostTensor d_y = HostTensor::normal(dtype, {rows, width}, 1);
        const HostTensor start = HostTensor::normal(sum_dtype(dtype), {width}, 2);
        HostTensor exact = start.to(DType::f64), first = start;
        ref::bias_gradient(d_y.to(DType::f64), exact);
        with_threads([&](int threads) {
          if (threads == 3) return;
          CpuBench cpu;
          HostTensor d_bias = start;
          const HostTensor workspace(DType::u8,
                                     {ops::bias_gradient_workspace(cpu.stream, rows, width)});
          ops::bias_gradient(cpu.stream, d_y, d_bias, workspace);
          // Sums of at most rows / 4 groups of four, in at most 64 blocks; terms below 5.
          const double u = unit_roundoff(sum_dtype(dtype)), terms = static_cast<double>(rows);
          expect_close(d_bias, exact, u,
                       (std::min(terms, 4 + terms / 128 + 64) + 4) * u * 5 * terms, "d_bias");
          if (threads == 1) first = d_bias;
          EXPECT_TRUE(d_bias.same_bits(first)) << threads << " threads";
          EXPECT_TRUE(d_bias.guard_intact() && workspace.guard_intact());
        });
      }
}

TEST(Reduce, AddRoundsOnceAndRunsInPlace) {
  for (const DType dtype : kElementTypes)
    for (const std::int64_t n : kCounts) {
      CpuBench cpu;
      const HostTensor a = HostTensor::normal(dtype, {n}, 1), b = HostTensor::normal(dtype, {n}, 2);
      HostTensor out(dtype, {n}, 1), exact(DType::f64, {n}), inside = a;
      for (std::int64_t i = 0; i < n; ++i) exact.set(i, a[i] + b[i]);
      ops::add(cpu.stream, a, b, out);
      expect_close(out, exact, operation_roundoff(dtype), 0, "add");
      ops::add(cpu.stream, inside, b, inside);
      expect_close(inside, out, 0, 0, "add in place");
      EXPECT_TRUE(out.guard_intact() && inside.guard_intact());
    }
}

TEST(Reduce, CastsRoundToNearestEvenBetweenAllTypes) {
  for (const DType from : kElementTypes)
    for (const DType to : kElementTypes)
      for (const std::int64_t n : {1, 17, 1000, 20001}) {
        CpuBench cpu;
        const HostTensor x = HostTensor::normal(from, {n}, 1);
        HostTensor y(to, {n});
        ops::cast(cpu.stream, x, y);
        expect_close(y, x, unit_roundoff(to), underflow_roundoff(to), "cast");
        const HostTensor scalar = x.to(to);
        for (std::int64_t i = 0; i < n && from != DType::f64; ++i) ASSERT_EQ(y[i], scalar[i]) << i;
        EXPECT_TRUE(y.guard_intact());
      }
}

TEST(Reduce, DoubleToBf16DoesNotRoundTwice) {
  CpuBench cpu;
  HostTensor x(DType::f64, {6}), y(DType::bf16, {6});
  x.set(0, 1 + 0x1p-8 + 0x1p-40);      // just above half way: up, though it is half way in f32
  x.set(1, 1 + 3 * 0x1p-8 - 0x1p-40);  // just below half way: down
  x.set(2, 1 + 0x1p-8);                // half way: to even
  x.set(3, INFINITY), x.set(4, std::nan("")), x.set(5, 3.39e38);
  ops::cast(cpu.stream, x, y);
  EXPECT_EQ(y[0], 1 + 0x1p-7);
  EXPECT_EQ(y[1], 1 + 0x1p-7);
  EXPECT_EQ(y[2], 1);
  EXPECT_EQ(y[3], INFINITY);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_EQ(y[5], std::ldexp(255.0, 120));
}

TEST(Reduce, DoubleToF16DoesNotRoundTwice) {
  CpuBench cpu;
  HostTensor x(DType::f64, {8}), y(DType::f16, {8});
  x.set(0, 1 + 0x1p-11 + 0x1p-40);      // just above half way: up, though it is half way in f32
  x.set(1, 1 + 3 * 0x1p-11 - 0x1p-40);  // just below half way: down
  x.set(2, 1 + 0x1p-11);                // half way: to even
  x.set(3, 0x1p-25 + 0x1p-60);          // the same between 0 and the smallest number
  x.set(4, 0x1p-25), x.set(5, 65520 - 0x1p-30), x.set(6, -65520), x.set(7, std::nan(""));
  ops::cast(cpu.stream, x, y);
  EXPECT_EQ(y[0], 1 + 0x1p-10);
  EXPECT_EQ(y[1], 1 + 0x1p-10);
  EXPECT_EQ(y[2], 1);
  EXPECT_EQ(y[3], 0x1p-24);
  EXPECT_EQ(y[4], 0);
  EXPECT_EQ(y[5], 65504);
  EXPECT_EQ(y[6], -INFINITY);
  EXPECT_TRUE(std::isnan(y[7]));
}

TEST(Reduce, F16OverflowsToInfinity) {
  for (const std::int64_t n : {1, 37}) {  // ragged and whole vectors
    CpuBench cpu;
    HostTensor y(DType::f16, {n});
    for (const DType from : {DType::f64, DType::f32, DType::bf16})
      for (const double sign : {1, -1}) {
        ops::cast(cpu.stream, HostTensor::filled(from, {n}, sign * 0x1p17), y);
        for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], sign * INFINITY) << name_of(from);
      }
    const HostTensor most = HostTensor::filled(DType::f16, {n}, 65504);
    const HostTensor little = HostTensor::filled(DType::f16, {n}, 15);
    ops::add(cpu.stream, most, little, y);  // 65519 is below half way to 2^16
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], 65504);
    ops::add(cpu.stream, most, most, y);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], INFINITY);
  }
}

TEST(Reduce, FlatMaps) {
  for (const std::int64_t n : kCounts) {
    CpuBench cpu;
    const HostTensor x = HostTensor::normal(DType::f32, {n}, 1);
    HostTensor y(DType::f32, {n}, 1);
    ops::copy(cpu.stream, x, y);
    expect_close(y, x, 0, 0, "copy");
    ops::scale(cpu.stream, y, 0.5);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], 0.5 * x[i]);
    ops::zero(cpu.stream, y);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], 0);
    EXPECT_TRUE(y.guard_intact());
  }
}

}  // namespace
}  // namespace choir
