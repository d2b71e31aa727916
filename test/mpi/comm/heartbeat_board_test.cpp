// Who is behind, as every rank of a node sees it.
#include "choir/comm/heartbeat_board.hpp"

#include <gtest/gtest.h>

#include "choir/comm/mesh.hpp"
#include "choir/comm/mpi_session.hpp"
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

}  // namespace
}  // namespace choir
