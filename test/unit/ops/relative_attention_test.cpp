#include "test/support/relative_attention_case.hpp"

#include "test/support/dropout_case.hpp"

namespace choir::test {
namespace {

TEST(RelativeAttention, PositionsAreSinesOfDistances) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t tokens : {1, 2, 63, 64, 65, 200})
      for (const std::int64_t width : {2, 6, 44})
        check_relative_positions(device, dtype, tokens, width);
}

TEST(RelativeAttention, QueriesAndTheirGradients) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t rows : {1, 17, 200})
      for (const std::int64_t width : {4, 24, 33})
        check_relative_queries(device, dtype, rows, 3, width);
}

TEST(RelativeAttention, ScoresAreUnshiftedAndMasked) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t tokens : {1, 2, 9})
      for (const ops::AttentionContext& context : kContexts)
        check_scores(device, dtype, 2, 3, tokens, context);
}

TEST(SplitNorm, IsTheNormOfAllChannels) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t ranks : {1, 2, 4})
      for (const std::int64_t width : {8, 17, 44})
        for (const ops::Norm kind : {ops::Norm::layernorm, ops::Norm::rmsnorm})
          check_split_norm(device, dtype, 21, width, ranks, kind);
}

TEST(StochasticDepth, LeavesUtterancesOut) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {1, 16, 33}) check_stochastic_depth(device, dtype, width);
}

TEST(Dropout, SampleIdsTakeThePlaceOfConsecutiveSamples) {
  CpuBench cpu;
  const HostTensor ones = HostTensor::filled(DType::f32, {12, 70}, 1);
  HostTensor consecutive(DType::f32, ones.shape()), named(DType::f32, ones.shape());
  auto args = dropout_arguments(ones, consecutive, 0.4);
  ops::dropout(cpu.stream, args);
  const std::int64_t ids[] = {args.first_sample + 2, args.first_sample, args.first_sample + 1};
  args.out = named, args.sample_ids = ids, args.factor = 0.5, args.first_sample = 0;
  ops::dropout(cpu.stream, args);
  const std::int64_t order[] = {2, 0, 1}, block = 4 * 70;
  for (std::int64_t s = 0; s < 3; ++s)
    for (std::int64_t i = 0; i < block; ++i)
      ASSERT_EQ(named[s * block + i], 0.5f * consecutive[order[s] * block + i]) << s << " " << i;
  args.probability = 0;
  ops::dropout(cpu.stream, args);
  for (std::int64_t i = 0; i < named.count(); ++i) ASSERT_EQ(named[i], 0.5);
}

}  // namespace
}  // namespace choir::test
