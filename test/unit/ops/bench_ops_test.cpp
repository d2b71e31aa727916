#include "choir/ops/bench_ops.hpp"

#include "choir/device/null_device.hpp"
#include "test/support/op_test.hpp"

namespace choir {
namespace {

TEST(BenchOps, EveryOpIsValidAndTimed) {
  CpuDevice device;
  const auto rows = ops::bench_ops(device, {65, 64, 96, 33, 20000}, 1e-4);
  EXPECT_EQ(rows.size(), 2 * 14 + 3u);
  for (const auto& row : rows) {
    EXPECT_TRUE(row.valid) << to_string(row);
    EXPECT_GT(row.seconds, 0) << row.op;
    EXPECT_GT(row.bytes_per_second, 0) << row.op;
    EXPECT_GT(row.copy_fraction, 0) << row.op;
  }
}

TEST(BenchOps, RefusesADeviceThatDoesNotCompute) {
  NullDevice nothing;
  EXPECT_THROW(ops::bench_ops(nothing, {}), Error);
}

}  // namespace
}  // namespace choir
