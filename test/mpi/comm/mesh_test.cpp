#include "choir/comm/mesh/mesh.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "choir/core/error.hpp"
#include "src/lab/bench/bench_collectives.hpp"
#include "test/support/mpi_test.hpp"

namespace choir::test {
namespace {

// Ranks of a communicator, collected by an all-gather.
std::vector<int> members(Communicator& comm, int world_rank_) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(comm.size()));
  all[static_cast<std::size_t>(comm.rank())] = world_rank_;
  comm.all_gather(all.data(), 1, DType::i32);
  return {all.begin(), all.end()};
}

TEST(OverWorld, DataParallel) {
  for (const Transport transport : {Transport::automatic, Transport::mpi, Transport::node}) {
    const auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), transport);
    std::vector<int> everyone(static_cast<std::size_t>(world_size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    EXPECT_ALL_RANKS(members(mesh->along(Axis::data), mesh->rank()) == everyone);
    EXPECT_ALL_RANKS(members(mesh->node(), mesh->rank()) == everyone);
    EXPECT_ALL_RANKS(mesh->along(Axis::tensor).size() == 1);
    EXPECT_STREQ(mesh->world().transport(), "mpi");
    const bool windows = transport != Transport::mpi && world_size() > 1;
    EXPECT_STREQ(mesh->along(Axis::data).transport(), windows ? "node" : "mpi");
    EXPECT_EQ(mesh->nodes(), 1);
  }
}

TEST(OverWorld, GroupsAreThoseOfTheLayout) {
  if (world_size() != 4) GTEST_SKIP() << "needs 4 ranks";
  for (const char* order : {"tp-cp-dp-pp", "pp-dp-cp-tp"}) {
    const Layout layout(2, 1, 1, 2, order);
    const auto mesh = Mesh::over_world(layout, Transport::automatic);
    for (const Axis axis : {Axis::tensor, Axis::context, Axis::data, Axis::pipeline}) {
      EXPECT_ALL_RANKS(members(mesh->along(axis), mesh->rank()) ==
                       layout.group(mesh->rank(), {axis}));
      EXPECT_ALL_RANKS(mesh->along(axis).rank() == mesh->coordinates()[axis]);
    }
  }
}

TEST(OverWorld, ReplicasAreDataTimesContext) {
  std::vector<Layout> layouts{Layout(1, world_size(), 1, 1), Layout(1, 1, world_size(), 1)};
  if (world_size() == 4)
    for (const char* order : {"tp-cp-dp-pp", "dp-cp-tp-pp", "dp-tp-cp-pp"})
      layouts.insert(layouts.end(), {Layout(1, 2, 2, 1, order), Layout(2, 2, 1, 1, order),
                                     Layout(2, 1, 2, 1, order)});
  for (const Layout& layout : layouts)
    for (const Transport transport : {Transport::automatic, Transport::mpi}) {
      const auto mesh = Mesh::over_world(layout, transport);
      Communicator& replicas = mesh->replicas();
      EXPECT_ALL_RANKS(members(replicas, mesh->rank()) == layout.replicas(mesh->rank()));
      EXPECT_EQ(&replicas, &mesh->host_replicas());
      if (layout.size(Axis::context) == 1) {
        EXPECT_EQ(&replicas, &mesh->along(Axis::data)) << "no second one";
      } else {
        EXPECT_NE(&replicas, &mesh->along(Axis::context)) << "they work at the same time";
        EXPECT_EQ(replicas.name(), "dp-cp");
      }
      const bool windows = transport != Transport::mpi && replicas.size() > 1;
      EXPECT_STREQ(replicas.transport(), windows ? "node" : "mpi");
      const auto planned = Mesh::planned(layout, mesh->rank(), 1);
      EXPECT_EQ(planned->replicas().size(), replicas.size());
      EXPECT_EQ(planned->replicas().rank(), replicas.rank());
    }
}

TEST(OverWorld, SeveralNodesRehearsedOnOne) {
  if (world_size() < 3) GTEST_SKIP() << "needs 3 or more ranks";
  const Layout layout(1, 1, world_size(), 1);
  const auto mesh = Mesh::over_world(layout, Transport::automatic, 2);
  EXPECT_ALL_RANKS(mesh->nodes() == (world_size() + 1) / 2);
  EXPECT_ALL_RANKS(mesh->node_index() == world_rank() / 2);
  EXPECT_ALL_RANKS(mesh->node().rank() == world_rank() % 2);
  EXPECT_STREQ(mesh->along(Axis::data).transport(), "two-level") << "the group spans nodes";
  bool refused = false;
  try {
    Mesh::over_world(layout, Transport::node, 2);
  } catch (const DeckError&) {
    refused = true;
  }
  EXPECT_ALL_RANKS(refused);
}

TEST(OverWorld, RefusesALayoutOfAnotherSize) {
  std::string text;
  try {
    Mesh::over_world(Layout(1, 1, world_size() + 1, 1), Transport::automatic);
  } catch (const DeckError& error) {
    text = error.what() + error.hint();
  }
  EXPECT_ALL_RANKS(text.find("mpiexec -n " + std::to_string(world_size() + 1)) != std::string::npos)
      << text;
}

TEST(Bench, HasARowForEachSizeAndTransport) {
  const auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  CollectiveBenchOptions options;
  options.max_bytes = std::size_t{256} << 10;
  options.repeats = 3;
  const CollectiveBench bench = bench_collectives(*mesh, options);
  EXPECT_EQ(bench.ranks, world_size());
  EXPECT_EQ(bench.rows.size(), world_size() == 1 ? 0u : 5u * 6u);
  if (world_size() == 1) return;
  for (const CollectiveRow& row : bench.rows) EXPECT_GT(row.seconds, 0.0) << row.name;
  EXPECT_GT(bench.comparison.copy, 0.0);
  EXPECT_GT(bench.comparison.over_single(), 0.0);
}

}  // namespace
}  // namespace choir::test
