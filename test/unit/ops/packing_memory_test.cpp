// Tests the estimate of the memory in which CBLAS packs operands against what it takes.
#include "kernels/gemm/packing_memory.hpp"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>

#include "src/core/process.hpp"
#include "src/device/cpu_device.hpp"

namespace choir::ops {
namespace {

/// f64, which only CBLAS multiplies.
Product product(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch = 1) {
  return {.m = m, .n = n, .k = k, .batch = batch, .in = DType::f64, .out = DType::f64};
}

TEST(PackingMemory, IsThatOfTheRowsOfC) {
  EXPECT_EQ(packing_bytes({}, 2), 0u);
  EXPECT_EQ(packing_bytes({product(1000, 7, 100)}, 2), 1000u * 100 * 8) << "short columns";
  EXPECT_EQ(packing_bytes({product(1000, 7, 300)}, 2), 1000u * 2048) << "a panel of long ones";
  EXPECT_EQ(packing_bytes({product(1000, 7, 300), product(10, 5000, 5000)}, 2), 1000u * 2048)
      << "the largest, once";
  EXPECT_EQ(packing_bytes({product(50, 50, 64, 12)}, 2), 2u * 50 * 64 * 8)
      << "one matrix per thread";
  EXPECT_EQ(packing_bytes({product(1 << 20, 64, 512)}, 2), 2 * kBlasBuffer)
      << "at most two buffers";
}

TEST(PackingMemory, CountsOnlyProductsOfCblas) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const bool transpose : {false, true}) {
      const Product one{.m = 1000, .n = 100, .k = 300, .in = type, .transpose_a = transpose};
      EXPECT_EQ(packing_bytes({one}, 2), goes_to_blas(one) ? 1000u * 300 * 4 : 0u);
    }
  EXPECT_TRUE(goes_to_blas(product(1, 1, 1)));
  MemoryPlan plan;
  add_packing(plan, {product(1000, 7, 300)}, DeviceKind::cuda);
  EXPECT_EQ(plan.total(), 0u) << "a GPU has another library";
  add_packing(plan, {product(1000, 7, 300)}, DeviceKind::cpu);
  EXPECT_EQ(plan.bytes_of("matrix products (packing)"), 1000u * 2048);
}

// Other tests of this process may have touched some of it before. The other operand's panels and
// the pages of code are within the slack.
TEST(PackingMemory, IsEnoughForAProductOfManyRows) {
  constexpr std::int64_t kRows = 50'000, kColumns = 32, kInner = 256, kSlack = 12 << 20;
  CpuDevice device;
  const Buffer a(device, kRows * kInner * 8), b(device, kInner * kColumns * 8),
      c(device, kRows * kColumns * 8);
  for (const Buffer* each : {&a, &b, &c}) std::memset(each->data(), 0, each->bytes());
  const std::int64_t before = resident_bytes();
  gemm(Stream(device), {a.data(), DType::f64, {kRows, kInner}},
       {b.data(), DType::f64, {kInner, kColumns}}, {c.data(), DType::f64, {kRows, kColumns}});
  const auto planned = static_cast<std::int64_t>(
      packing_bytes({product(kRows, kColumns, kInner)}, omp_get_max_threads()));
  EXPECT_EQ(planned, kRows * 2048);
  EXPECT_LE(resident_bytes() - before, planned + kSlack);
}

}  // namespace
}  // namespace choir::ops
