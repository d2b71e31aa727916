// Tests of the exchange of heads in device memory, by NCCL and staged: attention is compared with
// one rank on the CPU.
#include "test/mpi_cuda/device_kinds.hpp"
#include "test/support/context_case.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {
namespace {

using Way = DeviceTransport::Way;

class DeviceContext : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::availability().cards.empty()) GTEST_SKIP() << "there is no GPU";
    if (nccl_library().empty()) GTEST_SKIP() << "only under host execution";
    if (world_size() == 1) GTEST_SKIP() << "needs another rank";
    device_ = make_device(DeviceKind::cuda);
  }
  std::unique_ptr<Device> device_;
};

TEST_F(DeviceContext, AttentionIsThatOfOneRank) {
  // Numbers of K/V heads, and methods of exchange; a ring of groups of two if there are 4 ranks.
  using Meeting = std::pair<std::int64_t, ContextWay>;
  for (const auto& [kv_heads, context] :
       {Meeting{12, {}}, Meeting{2, {}}, Meeting{1, {}}, Meeting{2, {ContextMode::gather}},
        Meeting{2, {ContextMode::ring, world_size() == 4 ? 2 : 1}}}) {
    const AttentionContextCase c{
        .options = {.width = 96, .heads = 12, .kv_heads = kv_heads, .rope = true, .dropout = 0.2},
        .precision = "fp32",
        .way = context};
    CpuDevice cpu;
    SingleRank single;
    AttentionContextCase exact = c;
    exact.precision = "fp64";
    const ContextResult one = exact.run(cpu, *single.mesh);
    for (const Way way : {Way::nccl, Way::staged}) {
      const auto mesh = Mesh::over_world(Layout(1, world_size(), 1, 1), Transport::automatic);
      mesh->attach(*device_, {.way = way, .nccl_library = nccl_library()});
      EXPECT_STREQ(mesh->along(Axis::context).transport(), way == Way::nccl ? "nccl" : "staged");
      EXPECT_STREQ(mesh->replicas().transport(), way == Way::nccl ? "nccl" : "staged");
      const ContextResult many = c.run(*device_, *mesh);
      // Sums of up to 96 products of numbers near 1, each rounded to 2^-24, in three layers.
      constexpr double kTolerance = 3 * 96 * 0x1p-24;
      EXPECT_ALL_RANKS(distance(one.outputs, many.outputs) <= kTolerance)
          << distance(one.outputs, many.outputs);
      EXPECT_ALL_RANKS(distance(one.input_gradients, many.input_gradients) <= kTolerance)
          << distance(one.input_gradients, many.input_gradients);
      EXPECT_ALL_RANKS(distance(one.gradients, many.gradients) <= kTolerance)
          << distance(one.gradients, many.gradients);
    }
  }
}

}  // namespace
}  // namespace choir::test
