// Tests which rank is behind, as every rank of a node sees it.
#include "src/comm/watch/heartbeat_board.hpp"

#include <gtest/gtest.h>

#include "choir/comm/mesh/mesh.hpp"
#include "test/support/mpi_test.hpp"

namespace choir {
namespace {

TEST(HeartbeatBoard, NamesTheRankWithTheFewestBeats) {
  const int ranks = test::world_size();
  const auto mesh = Mesh::over_world(Layout(1, 1, ranks, 1), Transport::automatic);
  HeartbeatBoard board(mesh->node(), mesh->rank());
  board.publish("start");
  mesh->world().barrier();
  EXPECT_ALL_RANKS(board.behind().empty());
  mesh->world().barrier();
  const int last = ranks - 1;
  board.publish(mesh->rank() == last ? "stuck here" : "forward");
  if (mesh->rank() != last) board.publish("reduce");
  mesh->world().barrier();
  const std::string expected =
      ranks > 1 ? "rank " + std::to_string(last) + " is behind, in phase \"stuck here\"" : "";
  EXPECT_ALL_RANKS(board.behind() == expected);
  mesh->world().barrier();
}

// The rank with the fewest beats is no culprit if it is known to wait for another one.
TEST(HeartbeatBoard, LooksForTheRankThatDoesNotWait) {
  const int ranks = test::world_size();
  if (ranks == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto mesh = Mesh::over_world(Layout(1, 1, ranks, 1), Transport::automatic);
  HeartbeatBoard board(mesh->node(), mesh->rank());
  board.publish("start");
  if (mesh->rank() == 0) {
    board.publish("forward");
    board.publish("stuck here");
  } else {
    board.publish("waiting for 0", true);
  }
  mesh->world().barrier();
  EXPECT_ALL_RANKS(board.behind() == "rank 0 is behind, in phase \"stuck here\"") << board.behind();
  mesh->world().barrier();
  if (mesh->rank() == 0) board.publish("waiting too", true);
  mesh->world().barrier();
  EXPECT_ALL_RANKS(board.behind().starts_with("rank 1 is behind, in phase \"waiting for 0\""))
      << board.behind();
  mesh->world().barrier();
}

}  // namespace
}  // namespace choir
