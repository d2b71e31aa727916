// Tests of meshes over the first ranks of the world, while the others sleep.
#include "src/comm/mpi/mpi_communicator.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"
#include "test/support/measured.hpp"
#include "test/support/mpi_test.hpp"

namespace choir::test {
namespace {

std::unique_ptr<Mesh> world() {
  return Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::mpi);
}

TEST(LeadingGroup, WorksWhileTheOthersSleep) {
  const auto all = world();
  for (int n = 1; n <= world_size(); ++n) {
    const auto group = make_leading_group(all->world(), n);
    ASSERT_ALL_RANKS((group != nullptr) == (world_rank() < n));
    bool right = true;
    if (group) {
      for (const Transport transport : {Transport::automatic, Transport::mpi}) {
        const auto mesh = Mesh::over(*group, Layout(n, 1, 1, 1), transport);
        double sum = world_rank() + 1;
        mesh->along(Axis::tensor).all_reduce(&sum, 1, DType::f64, ReduceOp::sum);
        right = right && mesh->rank() == world_rank() && mesh->world().size() == n &&
                mesh->node().size() == n && sum == n * (n + 1) / 2;
      }
    }
    quiet_barrier(all->world());
    EXPECT_ALL_RANKS(right) << n;
  }
}

TEST(LeadingGroup, ALayoutOfAnotherSizeIsRefused) {
  const auto all = world();
  const auto group = make_leading_group(all->world(), 1);
  bool refused = group == nullptr;
  try {
    if (group) Mesh::over(*group, Layout(2, 1, 1, 1), Transport::mpi);
  } catch (const DeckError&) {
    refused = true;
  }
  EXPECT_ALL_RANKS(refused);
}

TEST(QuietBarrier, WaitsForAllAndCostsNothing) {
  if (world_size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  using Clock = std::chrono::steady_clock;
  const auto all = world();
  all->world().barrier();
  const auto cpu = [] {
    rusage use{};
    getrusage(RUSAGE_THREAD, &use);
    return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
  };
  constexpr double kLate = 0.4;
  int looks = 0;
  const auto start = Clock::now();
  const double before = cpu();
  if (world_rank() == 0) std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
  quiet_barrier(all->world(), [&] { ++looks; });
  const double waited = std::chrono::duration<double>(Clock::now() - start).count();
  const double spent = cpu() - before;
  if (world_rank() == 0)
    print_measured("CPU time of a quiet barrier", spent, "s", "below", kLate / 4);
  EXPECT_ALL_RANKS(waited >= 0.99 * kLate - 0.05) << waited;
  EXPECT_ALL_RANKS(world_rank() == 0 || looks > 10);
  EXPECT_ALL_RANKS(spent < kLate / 4) << "of a core";
}

}  // namespace
}  // namespace choir::test
