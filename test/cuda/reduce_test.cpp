#include "choir/ops/reduce.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaReduce : public CudaTest {};

TEST_F(CudaReduce, AddsElementsOfAnyCount) {
  for (const std::int64_t n : {1, 3, 4, 255, 1000, 4099}) {
    std::vector<float> a(static_cast<std::size_t>(n)), b(a.size());
    for (std::size_t i = 0; i < a.size(); ++i)
      a[i] = static_cast<float>(i), b[i] = 0.25f * static_cast<float>(i % 7);
    const DeviceTensor x(device(), DType::f32, {n}, a.data()),
        y(device(), DType::f32, {n}, b.data());
    const DeviceTensor z(device(), DType::f32, {n});
    ops::add(stream(), x, y, z);
    const std::vector<float> sum = z.host<float>();
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_EQ(sum[i], a[i] + b[i]) << i << " of " << n;
    EXPECT_TRUE(z.intact());
  }
}

}  // namespace
}  // namespace choir::test
