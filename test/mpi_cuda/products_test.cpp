// Tests of the choice of algorithms: the cards of several ranks find different ones fastest; rank 0
// chooses for all, so that all get the same bits.
#include <algorithm>
#include <cstdlib>

#include "choir/comm/mesh/mesh.hpp"
#include "kernels/gemm/gemm.hpp"
#include "src/train/step/product_timing.hpp"
#include "test/mpi_cuda/device_kinds.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {
namespace {

constexpr std::int64_t kExtent = 64;

ops::Product square() {
  return {.m = kExtent, .n = kExtent, .k = kExtent, .in = DType::bf16, .out = DType::f32};
}

/// Bits of the product of the same numbers on every rank.
std::vector<double> computed(Device& device) {
  Mirror mirror(device);
  const HostTensor a = HostTensor::normal(DType::bf16, {kExtent, kExtent}, 1);
  const HostTensor b = HostTensor::normal(DType::bf16, {kExtent, kExtent}, 2);
  HostTensor c(DType::f32, {kExtent, kExtent});
  ops::gemm(Stream(device), mirror.in(a), mirror.in(b), mirror.io(c));
  mirror.fetch();
  const auto* from = static_cast<const float*>(c.data());
  return {from, from + kExtent * kExtent};
}

bool equal_on_all(Communicator& world, const std::vector<double>& mine) {
  std::vector<double> least = mine, most = mine;
  world.all_reduce(least.data(), least.size(), DType::f64, ReduceOp::min);
  world.all_reduce(most.data(), most.size(), DType::f64, ReduceOp::max);
  return least == most;
}

TEST(DeviceProducts, RankZeroChoosesForAll) {
  if (nccl_library().empty()) GTEST_SKIP() << "only under host execution";
  if (world_size() == 1) GTEST_SKIP() << "needs another rank";
  setenv("HOST_CUDA_CARDS", std::to_string(world_size()).c_str(), 1);
  setenv("HOST_CUDA_PACE", "0", 1);
  const auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  {
    const auto device = make_device(DeviceKind::cuda, world_rank());
    // Ranks may have different products; here only the last one has any.
    std::set<ops::Product> asked;
    if (world_rank() + 1 == world_size()) asked.insert(square());
    const ProductTiming timing = time_products(*mesh, *device, asked, {});
    EXPECT_ALL_RANKS(equal_on_all(mesh->world(), computed(*device)));
    EXPECT_ALL_RANKS(timing.report.empty() == (world_rank() > 0)) << timing.report;
  }
  {  // negative control: each rank uses its own choice
    const auto device = make_device(DeviceKind::cuda, world_rank());
    const std::vector<double> seconds = ops::time_proposals(Stream(*device), square());
    const auto best = std::min_element(seconds.begin(), seconds.end()) - seconds.begin();
    ops::choose_products(*device, {{square(), static_cast<int>(best)}});
    EXPECT_ALL_RANKS(!equal_on_all(mesh->world(), computed(*device)));
  }
  unsetenv("HOST_CUDA_PACE");
  unsetenv("HOST_CUDA_CARDS");
}

}  // namespace
}  // namespace choir::test
