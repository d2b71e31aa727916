#include "kernels/bench/bench_table.hpp"

#include <set>

#include "kernels/bench/op_bench.hpp"
#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaBenchOps : public CudaTest {};

// Only the ops of a FastConformer run, because a bench calls each some hundred times.
TEST_F(CudaBenchOps, SpeechOpsAreValid) {
  const ops::BenchShape shape{.rows = 5, .speech = {2, 33, 10, 20, 24, 2, 5}};
  const ops::NormalPool pool(10007);
  std::vector<ops::BenchRow> rows;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ops::OpBench bench(device(), dtype, shape, 0, 1e9, pool, rows);
    bench_features(bench);
    bench_relative(bench);
    bench_blocks(bench);
  }
  std::set<std::string> names;
  for (const ops::BenchRow& row : rows) {
    names.insert(row.name);
    EXPECT_TRUE(row.valid()) << to_string(row);
  }
  for (const char* name :
       {"log_mel", "relative_positions", "relative_queries_forward", "relative_queries_backward",
        "unshift_scores", "mask_scores", "relative_attention_forward",
        "relative_attention_backward", "split_norm_moments", "split_norm_forward",
        "split_norm_sums", "split_norm_backward", "stochastic_depth_forward",
        "stochastic_depth_backward", "running_statistics"})
    EXPECT_TRUE(names.contains(name)) << name;
}

}  // namespace
}  // namespace choir::test
