#include "kernels/bench/bench_table.hpp"

#include <cmath>
#include <set>

#include "kernels/bench/bench_operands.hpp"
#include "kernels/bench/op_bench.hpp"
#include "src/device/null_device.hpp"
#include "test/support/op_test.hpp"

namespace choir {
namespace {

TEST(BenchOps, EveryOpIsValidAndTimed) {
  CpuDevice device;
  const auto rows =
      ops::bench_ops(device, {65, 64, 96, 33, 16, 32, 20000, {2, 33, 10, 20, 24, 2, 5}},
                     {DType::f32, DType::bf16}, 1e-4, 1e9);
  std::set<std::string> names;
  for (const auto& row : rows) {
    names.insert(row.name);
    EXPECT_TRUE(row.valid()) << to_string(row);
    EXPECT_GT(row.seconds, 0) << row.name;
    EXPECT_GT(row.work, 0) << row.name;
    EXPECT_EQ(row.ceiling, 1e9);
  }
  for (const char* name : {"layernorm_forward+add",
                           "rmsnorm_forward+add",
                           "layernorm_backward",
                           "rmsnorm_backward",
                           "gelu_forward",
                           "gelu_tanh_backward",
                           "relu_forward",
                           "swiglu_backward",
                           "geglu_forward",
                           "rope",
                           "dropout",
                           "embedding_forward",
                           "embedding_backward",
                           "cross_entropy",
                           "ctc",
                           "silu_forward",
                           "strided_conv_first_forward",
                           "strided_conv_first_backward",
                           "strided_conv_forward",
                           "strided_conv_backward",
                           "depthwise_conv_forward",
                           "depthwise_conv_backward",
                           "glu_forward",
                           "glu_backward",
                           "batch_norm_forward",
                           "batch_norm_backward",
                           "relative_positions",
                           "relative_queries_forward",
                           "relative_queries_backward",
                           "unshift_scores",
                           "mask_scores",
                           "relative_attention_forward",
                           "relative_attention_backward",
                           "relative_attention_backward+unshift",
                           "split_norm_moments",
                           "split_norm_forward",
                           "split_norm_sums",
                           "split_norm_backward",
                           "stochastic_depth_forward",
                           "stochastic_depth_backward",
                           "running_statistics",
                           "bias_gradient",
                           "silu_backward+bias",
                           "dropout+bias",
                           "layernorm_forward+dropout",
                           "layernorm_backward+dropout",
                           "add",
                           "copy_blocks",
                           "copy_blocks+add",
                           "cast from f32",
                           "cast to f32",
                           "log_mel",
                           "normalise_features",
                           "spec_augment",
                           "sum_of_squares",
                           "adamw",
                           "adamw+copy"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(BenchOps, OpsOfOtherFamiliesAreLeftOut) {
  CpuDevice device;
  ops::BenchShape shape{.rows = 66, .width = 64, .hidden = 96, .vocabulary = 33, .tokens = 11};
  const auto names_of = [&] {
    std::set<std::string> names;
    for (const auto& row : ops::bench_ops(device, shape, {DType::f32}, 1e-4, 1e9))
      names.insert(row.name);
    return names;
  };
  const std::set<std::string> text = names_of();
  for (const char* of_speech : {"ctc", "log_mel", "normalise_features", "spec_augment"})
    EXPECT_FALSE(text.contains(of_speech)) << of_speech;
  EXPECT_TRUE(text.contains("rope"));
  shape.speech = {2, 33, 10, 20, 24, 2, 5};
  shape.text = false;
  const std::set<std::string> speech = names_of();
  for (const char* of_text : {"rope", "embedding_forward", "cross_entropy"})
    EXPECT_FALSE(speech.contains(of_text)) << of_text;
  EXPECT_TRUE(speech.contains("ctc") && speech.contains("dropout"));
}

TEST(BenchOps, LargeShapesAreCheckedInWindows) {
  CpuDevice device;
  for (const auto& row : ops::bench_ops(device, {1500, 32, 48, 70, 64, 16, 40000},
                                        {DType::f32, DType::bf16}, 1e-4, 1e9))
    EXPECT_TRUE(row.valid()) << to_string(row);
}

TEST(BenchOps, RefusesADeviceThatDoesNotCompute) {
  NullDevice nothing;
  EXPECT_THROW(ops::bench_ops(nothing, {}, {DType::f32}), Error);
}

TEST(BenchRow, IsInvalidWhenWrongOrNotANumber) {
  const std::vector<double> right{1, -2, 2};
  const auto row_of = [&](const std::vector<double>& actual) {
    ops::Agreement agreement;
    agreement.add(actual, right, 0x1p-8);
    ops::BenchRow row;
    agreement.judge(row);
    return row;
  };
  EXPECT_TRUE(row_of({1, -2, 2}).valid());
  EXPECT_TRUE(row_of({1.005, -2, 2}).valid());
  EXPECT_FALSE(row_of({1.02, -2, 2}).valid());
  EXPECT_FALSE(row_of({NAN, -2, 2}).valid());
  EXPECT_FALSE(row_of({0, 0, 0}).valid());
  ops::BenchRow row;
  EXPECT_THROW(ops::Agreement().judge(row), Error);  // comparing nothing is no agreement
}

TEST(BenchRow, TheWorstTensorDecides) {
  ops::Agreement agreement;
  agreement.add({1.1}, {1.0}, 0.01);
  agreement.add({1.0}, {1.0}, 0.01);
  ops::BenchRow row;
  agreement.judge(row);
  EXPECT_FALSE(row.valid());
  EXPECT_NEAR(row.error, 0.1, 1e-12);
}

TEST(BenchRow, WhatIsAllowedCatchesOneLostBit) {
  // A result in bf16 where f32 was promised, or in TF32 (11 bits), is never within the allowed
  // error.
  EXPECT_LT(ops::allowed_error(DType::f32, 65536), 0x1p-11 / 4);
  EXPECT_LT(ops::allowed_product_error(DType::f32, DType::f32, 65536), 0x1p-11 / 4);
  EXPECT_LT(ops::allowed_error(DType::f16, 4096), 0x1p-10);
  EXPECT_LT(ops::allowed_product_error(DType::bf16, DType::bf16, 8192), 0x1p-7);
}

TEST(BenchOperands, TheHostKnowsWhatTheDeviceHas) {
  CpuDevice device;
  const ops::NormalPool pool(1009);
  ops::BenchOperands data(device, pool, 1e6);
  EXPECT_EQ(data.sets(), 64);
  const ops::Operand x = data.normal(DType::bf16, {40, 50}), y = data.normal(DType::bf16, {40, 50});
  const ops::Operand v = data.positive(DType::f32, {3000}), ids = data.integers(3000, 17);
  EXPECT_EQ(data.read(x[0]), x.exact(0, 2000));
  EXPECT_EQ(data.read(x[63], 100, 9), x.exact(100, 9));
  EXPECT_NE(x[0].data, x[63].data);
  EXPECT_NE(x.exact(0, 2000), y.exact(0, 2000));
  double sum = 0, squares = 0;
  for (const double value : x.exact(0, 2000)) sum += value, squares += value * value;
  EXPECT_NEAR(sum / 2000, 0, 4 / std::sqrt(1009.0));
  EXPECT_NEAR(squares / 2000, 1, 4 * std::sqrt(2 / 1009.0));
  for (const double value : data.read(v[1])) EXPECT_GE(value, 0);
  std::set<double> seen;
  for (const double id : data.read(ids[0])) seen.insert(id);
  EXPECT_EQ(seen.size(), 17u);
  EXPECT_EQ(*seen.rbegin(), 16);
  device.zero(x[5].data, x[5].bytes());
  data.restore(x);
  EXPECT_EQ(data.read(x[5]), x.exact(0, 2000));
}

TEST(Stopwatch, CallsInTurnAndPreparesEach) {
  CpuDevice device;
  const Stream stream(device);
  std::vector<std::int64_t> calls, prepared;
  const double seconds = ops::median_seconds(
      stream, 0, [&](std::int64_t i) { calls.push_back(i); },
      [&](std::int64_t i) { prepared.push_back(i); });
  EXPECT_GE(seconds, 0);
  EXPECT_GE(calls.size(), 7u);  // two for warm-up, five measured
  for (std::size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i], static_cast<std::int64_t>(i));
  EXPECT_EQ(calls, prepared);
}

}  // namespace
}  // namespace choir
