#include "kernels/sums/sums.hpp"
#include "src/device/null_device.hpp"
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {
namespace {

class CudaBiasGradient : public CudaTest {
 protected:
  HostTensor run(const HostTensor& d_y, const HostTensor& start, int skew) {
    HostTensor d_bias = start;
    Mirror mirror(device());
    const std::int64_t bytes =
        ops::bias_gradient_workspace(stream(), d_y.shape().rows(), d_y.shape().back());
    ops::bias_gradient(stream(), mirror.in(d_y, skew), mirror.io(d_bias), mirror.workspace(bytes));
    mirror.fetch();
    return d_bias;
  }
  void check(DType dtype, std::int64_t rows, std::int64_t width, int skew = 0) {
    SCOPED_TRACE(fmt::format("{} [{}, {}] skew {}", name_of(dtype), rows, width, skew));
    const HostTensor d_y = HostTensor::normal(dtype, {rows, width}, 1);
    const HostTensor start = HostTensor::normal(DType::f32, {width}, 2);
    HostTensor exact = start.to(DType::f64);
    ref::bias_gradient(d_y.to(DType::f64), exact);
    const HostTensor d_bias = run(d_y, start, skew);
    // At most `rows` additions and one to the total; each rounds a sum of terms below 5.
    const double u = unit_roundoff(DType::f32), terms = static_cast<double>(rows);
    expect_close(d_bias, exact, u, (terms + 1) * u * 5 * (terms + 1), "d_bias");
    EXPECT_TRUE(d_bias.same_bits(run(d_y, start, skew))) << "not deterministic";
  }
};

TEST_F(CudaBiasGradient, MatchesTheReferenceForRaggedShapes) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {1, 7, 8, 33, 264})
      for (const std::int64_t rows : {1, 5, 33, 70}) check(dtype, rows, width);
}

TEST_F(CudaBiasGradient, AnyAlignment) {
  for (const DType dtype : kGpuTypes)
    for (const int skew : {1, 2}) check(dtype, 9, 64, skew);
}

TEST_F(CudaBiasGradient, RowsOfOneKernelAndOfTwo) {
  check(DType::bf16, 8 * 512 + 1, 40);  // more than the threads of a block read at once
  check(DType::bf16, 16384, 8);
  check(DType::bf16, 16385, 8);
}

TEST_F(CudaBiasGradient, PartialSumsOfManyBlocks) {
  check(DType::bf16, 32 * 40 + 1, 15);  // more blocks than warps add up at a time
}

TEST_F(CudaBiasGradient, OneKernelTsan) {
  check(DType::bf16, 70, 40);
}

TEST_F(CudaBiasGradient, TwoStagesTsan) {
  check(DType::bf16, 70, 41);
}

TEST_F(CudaBiasGradient, TheWorkspaceIsPlannedWithoutTheDevice) {
  NullDevice planned(DeviceKind::cuda);
  for (const std::int64_t rows : {1, 33, 100000})
    for (const std::int64_t width : {1, 768, 50257}) {
      const std::int64_t bytes = ops::bias_gradient_workspace(Stream(planned), rows, width);
      EXPECT_EQ(bytes, ops::bias_gradient_workspace(stream(), rows, width));
      EXPECT_LE(bytes, 4 * 1057 * 256 + 8 * (width + 31));  // does not grow with the rows
    }
}

}  // namespace
}  // namespace choir::test
