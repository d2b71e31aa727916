#include "kernels/sums/sums.hpp"

#include "kernels/sums/sums.hpp"
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {
namespace {

class CudaReduce : public CudaTest {
 protected:
  /// Runs op(stream, views...) on tensors, and copies the last one back.
  template <class Op>
  void run(const Op& op, std::vector<const HostTensor*> in, HostTensor& out, int skew = 0) {
    Mirror mirror(device());
    std::vector<TensorView> views;
    for (const HostTensor* x : in) views.push_back(mirror.in(*x, skew));
    op(stream(), views, mirror.io(out, skew));
    mirror.fetch();
  }
  HostTensor tree_sum(const HostTensor& x) {
    HostTensor total(DType::f64, {1});
    run([](auto s, auto& v, auto out) { ops::tree_sum(s, v[0], out); }, {&x}, total);
    return total;
  }
};

TEST_F(CudaReduce, AddsElementsOfAnyCountAndAlignment) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t n : {1, 3, 4, 255, 1000, 4099})
      for (const int skew : {0, 1}) {
        const HostTensor a = HostTensor::normal(dtype, {n}, 1),
                         b = HostTensor::normal(dtype, {n}, 2);
        HostTensor out(dtype, {n}), exact(DType::f64, {n});
        for (std::int64_t i = 0; i < n; ++i) exact.set(i, a[i] + b[i]);
        run([](auto s, auto& v, auto to) { ops::add(s, v[0], v[1], to); }, {&a, &b}, out, skew);
        expect_close(out, exact, operation_roundoff(dtype), 0, "add");
      }
}

TEST_F(CudaReduce, ScalesOnceRounded) {
  for (const std::int64_t n : {1, 4, 4099})
    for (const int skew : {0, 1}) {
      const HostTensor start = HostTensor::normal(DType::f32, {n}, 1);
      HostTensor x = start;
      run([](auto s, auto&, auto to) { ops::scale(s, to, 0.3); }, {}, x, skew);
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(x.as<float>()[i], start.as<float>()[i] * 0.3f);
    }
}

TEST_F(CudaReduce, CastsAsTheCpuDoes) {
  CpuBench cpu;
  for (const DType from : kGpuTypes)
    for (const DType to : kGpuTypes)
      for (const std::int64_t n : {1, 8, 17, 3001})
        for (const int skew : {0, 1}) {
          HostTensor x = HostTensor::normal(from, {n}, 1, 100);
          if (n > 8)
            x.set(1, INFINITY), x.set(2, 1e30), x.set(3, 1e-6), x.set(4, -0.0), x.set(5, 0x1p-25);
          HostTensor y(to, {n}), expected(to, {n});
          ops::cast(cpu.stream, x, expected);
          run([](auto s, auto& v, auto out) { ops::cast(s, v[0], out); }, {&x}, y, skew);
          EXPECT_TRUE(y.same_bits(expected))
              << name_of(from) << " to " << name_of(to) << " n " << n;
        }
  HostTensor x = HostTensor::filled(DType::f32, {9}, NAN), y(DType::f16, {9});
  run([](auto s, auto& v, auto out) { ops::cast(s, v[0], out); }, {&x}, y);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(std::isnan(y[i]));
}

TEST_F(CudaReduce, RefusesDoubles) {
  HostTensor x = HostTensor::normal(DType::f64, {9}, 1), y(DType::f32, {9}), sum(DType::f64, {1});
  const auto cast = [](auto s, auto& v, auto out) { ops::cast(s, v[0], out); };
  EXPECT_THROW(run(cast, {&x}, y), Error);
  EXPECT_THROW(run(cast, {&y}, x), Error);
  EXPECT_THROW(run([](auto s, auto&, auto to) { ops::scale(s, to, 2); }, {}, x), Error);
  EXPECT_THROW(run([](auto s, auto& v, auto to) { ops::sum_of_squares(s, v[0], to); }, {&x}, sum),
               Error);
}

TEST_F(CudaReduce, SumOfSquaresMatchesInFixedChunks) {
  for (const std::int64_t n : {1, 3, 1000, 16384, 16385, 40001}) {
    const HostTensor x = HostTensor::normal(DType::f32, {n}, 1);
    const std::int64_t chunks = (n + ops::kNormChunk - 1) / ops::kNormChunk;
    HostTensor exact(DType::f64, {chunks}), aligned(DType::f64, {chunks}), skewed = aligned;
    const auto op = [](auto s, auto& v, auto to) { ops::sum_of_squares(s, v[0], to); };
    ref::sum_of_squares(x.to(DType::f64), exact);
    Mirror mirror(device());
    ops::sum_of_squares(stream(), mirror.in(x, 1), mirror.io(skewed));
    mirror.fetch();
    run(op, {&x}, aligned);
    // All terms are positive: the reference's own roundings dominate.
    expect_close(aligned, exact, 16384 * 0x1p-53, 0, "partials");
    EXPECT_TRUE(skewed.same_bits(aligned)) << "alignment must not change the order";
  }
}

TEST_F(CudaReduce, SquaresTsan) {
  const HostTensor x = HostTensor::normal(DType::f32, {16390}, 1);
  HostTensor partials(DType::f64, {2});
  run([](auto s, auto& v, auto to) { ops::sum_of_squares(s, v[0], to); }, {&x}, partials);
  EXPECT_GT(partials[1], 0);
}

TEST_F(CudaReduce, TreeSumIsTheTreeBitForBit) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t n : {1, 2, 3, 7, 63, 64, 65, 255, 256, 257, 1000, 16385, 70001}) {
      const HostTensor x = HostTensor::normal(dtype, {n}, 1);
      HostTensor exact(DType::f64, {1});
      ref::tree_sum(x.to(DType::f64), exact);
      EXPECT_TRUE(tree_sum(x).same_bits(exact)) << name_of(dtype) << " " << n;
    }
  const HostTensor zeros = HostTensor::filled(DType::f32, {3}, -0.0);
  EXPECT_TRUE(std::signbit(tree_sum(zeros)[0])) << "padding must not turn -0 into 0";
}

// There are more leaves than one round of the block takes: rounds are joined like the tree.
TEST_F(CudaReduce, TreeSumOfManyRounds) {
  constexpr std::int64_t kRound = 1024 * 256;
  const std::int64_t n = 3 * kRound + 4321;
  HostTensor x(DType::f64, {n});
  for (std::int64_t i = 0; i < n; ++i) x.as<double>()[i] = 1.0 / static_cast<double>(3 + i % 1013);
  HostTensor exact(DType::f64, {1});
  ref::tree_sum(x, exact);
  EXPECT_TRUE(tree_sum(x).same_bits(exact));
}

TEST_F(CudaReduce, TreeTsan) {
  EXPECT_EQ(tree_sum(HostTensor::filled(DType::f32, {777}, 2))[0], 1554);
}

}  // namespace
}  // namespace choir::test
