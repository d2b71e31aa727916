// Training on several devices: in reproducible mode the ranks hold bit for bit what one rank holds,
// whichever way its gradients travel; over NCCL the steps are recorded and replayed, tree sums and
// all.
#include <bit>

#include "choir/core/error.hpp"
#include "test/mpi_cuda/device_kinds.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {
namespace {

constexpr int kSteps = 5;  // the first two are queued, the others recorded where that is possible
constexpr std::int64_t kMicroBatches = 4;

/// Masters and moments after a few steps on the ranks of a mesh, which is gone afterwards.
std::vector<double> trained(std::unique_ptr<Mesh> mesh, std::unique_ptr<Device> device) {
  EngineOptions options =
      engine_options(tiny_gpt(), "bf16-mixed", kMicroBatches / mesh->along(Axis::data).size());
  options.reproducible = true;
  EngineRun run(options, *mesh, std::move(device));
  for (int i = 0; i < kSteps; ++i) EXPECT_TRUE(run.step().updated);
  const std::vector<double> state = run.state();
  mesh.reset();  // before its device
  return state;
}

TEST(DeviceTraining, RanksHoldTheBitsOfOneRank) {
  const auto cards = cuda::availability().cards;
  if (cards.empty() || nccl_library().empty()) GTEST_SKIP() << "only under host execution";
  if (!std::has_single_bit(static_cast<unsigned>(world_size()))) GTEST_SKIP() << "needs 2^n ranks";
  const std::vector<double> alone =
      trained(Mesh::planned(Layout(), 0, 1), make_device(DeviceKind::cuda));
  for (const auto way : {DeviceTransport::Way::staged, DeviceTransport::Way::automatic}) {
    auto device = make_device(DeviceKind::cuda);
    auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
    mesh->attach(*device, {.way = way, .nccl_library = nccl_library()});
    const std::string transport = mesh->along(Axis::data).transport();
    EXPECT_ALL_RANKS(trained(std::move(mesh), std::move(device)) == alone) << transport;
  }
}

}  // namespace
}  // namespace choir::test
