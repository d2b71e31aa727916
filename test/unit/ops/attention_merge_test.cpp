#include "test/support/attention_merge_case.hpp"

#include "choir/core/error.hpp"
#include "kernels/attention/attention.hpp"
#include "src/device/null_device.hpp"

namespace choir::test {
namespace {

TEST(AttentionMerge, MatchesTheReference) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes)
    for (const bool first : {true, false}) {
      AttentionMergeCase{dtype, 2, 9, 3, 7, first}.check(cpu);
      AttentionMergeCase{dtype, 1, 700, 4, 64, first}.check(cpu);  // by several threads
    }
}

// Queries that follow three sets of keys, and a fourth set of their own: the merged results, and
// the backward passes of each set from them, are equal to attention over all keys.
TEST(AttentionMerge, OfAllSetsIsAttentionToAllKeys) {
  constexpr std::int64_t kBatch = 2, kHeads = 4, kPairs = 2, kWidth = 8, kTokens = 5, kSets = 4;
  constexpr std::int64_t kRow = kHeads * kWidth, kKeyRow = kPairs * kWidth;
  CpuDevice cpu;
  const Stream stream(cpu);
  const HostTensor q = HostTensor::normal(DType::f64, {kBatch * kTokens, kRow}, 1);
  const Shape all_keys{kBatch, kSets * kTokens, kKeyRow};
  const HostTensor k = HostTensor::normal(DType::f64, all_keys, 2);
  const HostTensor v = HostTensor::normal(DType::f64, all_keys, 3);
  const HostTensor d_out = HostTensor::normal(DType::f64, {kBatch * kTokens, kRow}, 4);
  const auto rows = [](const HostTensor& x) -> ops::AttentionOperand {
    return {const_cast<void*>(x.data()), kTokens * kRow, kRow};
  };
  const auto keys = [](const HostTensor& x, std::int64_t set) -> ops::AttentionOperand {
    auto* const data = static_cast<double*>(const_cast<void*>(x.data()));
    return {data + set * kTokens * kKeyRow, kSets * kTokens * kKeyRow, kKeyRow};
  };
  ops::AttentionProblem problem{.batch = kBatch,
                                .heads = kHeads,
                                .kv_heads = kPairs,
                                .head_width = kWidth,
                                .queries = kTokens,
                                .keys = kSets * kTokens,
                                .scale = 0.35,
                                .dtype = DType::f64};
  const Shape of_lse{kBatch, kHeads, kTokens};
  HostTensor exact(DType::f64, q.shape()), exact_lse(DType::f64, of_lse);
  HostTensor exact_d_q(DType::f64, q.shape()), exact_d_k(DType::f64, all_keys),
      exact_d_v(DType::f64, all_keys);
  ref::attention_forward({.problem = problem,
                          .q = rows(q),
                          .k = keys(k, 0),
                          .v = keys(v, 0),
                          .out = rows(exact),
                          .log_sum_exp = exact_lse.view(),
                          .workspace = {}});
  ref::attention_backward({.problem = problem,
                           .q = rows(q),
                           .k = keys(k, 0),
                           .v = keys(v, 0),
                           .out = rows(exact),
                           .d_out = rows(d_out),
                           .log_sum_exp = exact_lse.view(),
                           .d_q = rows(exact_d_q),
                           .d_k = keys(exact_d_k, 0),
                           .d_v = keys(exact_d_v, 0),
                           .workspace = {}});

  problem.keys = kTokens;
  std::vector<std::byte> memory(static_cast<std::size_t>(std::max<std::int64_t>(
                                    1, ops::attention_workspace(stream, problem, true))) +
                                (1 << 16));
  const TensorView workspace{memory.data(), DType::u8, {static_cast<std::int64_t>(memory.size())}};
  HostTensor out(DType::f64, q.shape()), lse(DType::f64, of_lse), part(DType::f64, q.shape()),
      part_lse(DType::f64, of_lse);
  for (std::int64_t set = 0; set < kSets; ++set) {
    problem.causal = set + 1 == kSets;
    ops::attention_forward(stream, {.problem = problem,
                                    .q = rows(q),
                                    .k = keys(k, set),
                                    .v = keys(v, set),
                                    .out = rows(part),
                                    .log_sum_exp = part_lse.view(),
                                    .workspace = workspace});
    ops::attention_merge(stream, {.heads = kHeads,
                                  .queries = kTokens,
                                  .part = part.view(),
                                  .part_log_sum_exp = part_lse.view(),
                                  .out = out.view(),
                                  .log_sum_exp = lse.view(),
                                  .first = set == 0});
  }
  expect_close(out, exact, 1e-13, 1e-13, "out");
  expect_close(lse, exact_lse, 1e-13, 1e-13, "log sum exp");

  HostTensor d_q(DType::f64, q.shape()), d_k(DType::f64, all_keys), d_v(DType::f64, all_keys),
      d_q_part(DType::f64, q.shape());
  for (std::int64_t set = 0; set < kSets; ++set) {
    problem.causal = set + 1 == kSets;
    ops::attention_backward(stream, {.problem = problem,
                                     .q = rows(q),
                                     .k = keys(k, set),
                                     .v = keys(v, set),
                                     .out = rows(out),
                                     .d_out = rows(d_out),
                                     .log_sum_exp = lse.view(),
                                     .d_q = rows(d_q_part),
                                     .d_k = keys(d_k, set),
                                     .d_v = keys(d_v, set),
                                     .workspace = workspace});
    for (std::int64_t i = 0; i < kBatch * kTokens * kRow; ++i) {
      auto* const sum = static_cast<double*>(d_q.data()) + i;
      *sum = (set == 0 ? 0 : *sum) + static_cast<const double*>(d_q_part.data())[i];
    }
  }
  expect_close(d_q, exact_d_q, 1e-12, 1e-12, "d_q");
  expect_close(d_k, exact_d_k, 1e-12, 1e-12, "d_k");
  expect_close(d_v, exact_d_v, 1e-12, 1e-12, "d_v");
}

TEST(AttentionMerge, CountsItsTraffic) {
  NullDevice null;
  WorkCounter work;
  const auto tensor = [](DType dtype, const Shape& shape) {
    return TensorView{reinterpret_cast<void*>(64), dtype, shape};
  };
  ops::AttentionMerge merge{.heads = 2, .queries = 5};
  merge.part = tensor(DType::bf16, {10, 16}), merge.out = tensor(DType::f32, {10, 16});
  merge.part_log_sum_exp = merge.log_sum_exp = tensor(DType::f32, {2, 2, 5});
  ops::attention_merge(Stream(null, &work), merge);
  EXPECT_EQ(work.bytes, 160 * (2 + 2 * 4));
  EXPECT_EQ(work.flops, 3 * 160);
  merge.heads = 3;
  EXPECT_THROW(ops::attention_merge(Stream(null), merge), Error);
}

}  // namespace
}  // namespace choir::test
