#include "test/support/relative_attention_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaRelativeAttention : public CudaTest {};

TEST_F(CudaRelativeAttention, Positions) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t tokens : {1, 65}) check_relative_positions(device(), dtype, tokens, 44);
}

TEST_F(CudaRelativeAttention, QueriesAndTheirGradients) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {22, 24})  // one by one, and whole packs
      for (const std::int64_t rows : {1, 50})
        check_relative_queries(device(), dtype, rows, 3, width);
}

TEST_F(CudaRelativeAttention, ScoresAreUnshiftedAndMasked) {
  for (const DType dtype : kGpuTypes)
    for (const ops::AttentionContext& context : kContexts)
      check_scores(device(), dtype, 2, 3, 9, context);
  // Rows of whole packs, longer than a warp reads at once, at every shift of their source.
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t tokens : {1, 5, 9, 140})
      check_scores(device(), dtype, 2, tokens > 9 ? 1 : 3, tokens, {}, 7 - (2 * tokens - 2) % 8);
}

TEST_F(CudaRelativeAttention, SplitNorm) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {17, 44})
      for (const ops::Norm kind : {ops::Norm::layernorm, ops::Norm::rmsnorm})
        check_split_norm(device(), dtype, 21, width, 2, kind);
}

TEST_F(CudaRelativeAttention, StochasticDepth) {
  for (const DType dtype : kGpuTypes) check_stochastic_depth(device(), dtype, 33);
}

}  // namespace
}  // namespace choir::test
