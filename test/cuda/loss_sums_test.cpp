// Counts of targets and running sums of losses on the device equal those of the CPU.
#include "kernels/sums/sums.hpp"

#include "test/cuda/cuda_fixture.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {
namespace {

class CudaLossSums : public CudaTest {};

TEST_F(CudaLossSums, CountsAreThoseOfTheReference) {
  for (const std::int64_t n : {1, 511, 512, 4097}) {
    HostTensor ids(DType::i32, {n}), lengths(DType::i32, {3});
    for (std::int64_t i = 0; i < n; ++i) ids.set(i, static_cast<double>(i % 5 - 2));
    for (std::int64_t i = 0; i < 3; ++i) lengths.set(i, static_cast<double>(100 * i));
    HostTensor expected(DType::f64, {1}), count(DType::f64, {1});
    ref::count_targets({ids, lengths, 0.5, expected});
    Mirror mirror(device());
    ops::count_targets(stream(), {mirror.in(ids), mirror.in(lengths), 0.5, mirror.io(count)});
    mirror.fetch();
    EXPECT_EQ(count[0], expected[0]) << n;
  }
}

TEST_F(CudaLossSums, SumsRun) {
  HostTensor own(DType::f64, {2}), sum(DType::f64, {1}), count(DType::f64, {1});
  own.set(0, 1.25), own.set(1, 3);
  sum.set(0, 10), count.set(0, 2);
  Mirror mirror(device());
  const ops::AddLosses call{mirror.in(own), mirror.io(sum), mirror.io(count)};
  ops::add_losses(stream(), call);
  ops::add_losses(stream(), call);
  mirror.fetch();
  EXPECT_EQ(sum[0], 12.5);
  EXPECT_EQ(count[0], 8);
}

}  // namespace
}  // namespace choir::test
