// Tests how the boards of several nodes are combined through files. The nodes are rehearsed: one
// node is divided into several that share no memory.
#include "src/comm/watch/flight_report.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "choir/comm/mesh/mesh.hpp"
#include "src/comm/watch/watchdog.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "test/support/has.hpp"
#include "test/support/mpi_test.hpp"

namespace choir {
namespace {

using test::has;

/// One folder for all ranks, removed at the end.
class SharedFolder {
 public:
  explicit SharedFolder(Communicator& world) : world_(world) {
    std::array<char, 256> path{};
    std::snprintf(path.data(), path.size(), "%s/choir-flight.XXXXXX",
                  std::filesystem::temp_directory_path().c_str());
    if (world.rank() == 0 && mkdtemp(path.data()) == nullptr) ADD_FAILURE() << path.data();
    world.broadcast(path.data(), path.size(), 0);
    path_ = path.data();
  }
  ~SharedFolder() {
    world_.barrier();
    if (world_.rank() == 0) std::filesystem::remove_all(path_);
  }
  const std::string& path() const { return path_; }

 private:
  Communicator& world_;
  std::string path_;
};

class TwoNodes : public testing::Test {
 protected:
  const int ranks = test::world_size(), me = test::world_rank(), last = ranks - 1;
  std::unique_ptr<Mesh> mesh =
      Mesh::over_world(Layout(1, 1, ranks, 1), Transport::automatic, (ranks + 1) / 2);
  SharedFolder folder{mesh->world()};
  HeartbeatBoard board{mesh->node(), mesh->rank()};

  int ranks_where(bool yes) {
    std::int64_t count = yes ? 1 : 0;
    mesh->world().all_reduce(&count, 1, DType::i64, ReduceOp::sum);
    return static_cast<int>(count);
  }
  // The last rank is behind the others.
  void progress() {
    board.publish("start");
    board.publish(me == last ? "stuck here" : "forward");
    if (me != last) board.publish("reduce");
  }
  std::string stuck() const {
    return "rank " + std::to_string(last) + " on " + host_name() +
           " is behind, in phase \"stuck here\"";
  }
};

TEST_F(TwoNodes, OneNodeReadsWhatTheOtherSaw) {
  if (ranks == 1) GTEST_SKIP() << "needs 2 or more ranks";
  ASSERT_EQ(mesh->nodes(), 2);
  const FlightExchange exchange(mesh->world(), board.leader(), folder.path());
  progress();
  mesh->world().barrier();
  const bool speaks = board.first_to_report();
  EXPECT_EQ(ranks_where(speaks), 2) << "one of each node";
  EXPECT_EQ(speaks ? exchange.leave(board.flights()) : "", "");
  EXPECT_EQ(ranks_where(exchange.claim()), 1) << "one of all";
  mesh->world().barrier();
  const auto all = exchange.gather(10);
  EXPECT_ALL_RANKS(all.silent.empty());
  ASSERT_ALL_RANKS(static_cast<int>(all.flights.size()) == ranks);
  for (int r = 0; r < ranks; ++r) {
    const RankFlight& flight = all.flights[static_cast<std::size_t>(r)];
    EXPECT_EQ(flight.world_rank, r);
    EXPECT_EQ(flight.host, host_name());
    EXPECT_EQ(flight.phase, r == last ? "stuck here" : "reduce");
    EXPECT_FALSE(flight.calls.empty());
  }
  EXPECT_TRUE(has(report_of_all(all, now_seconds()), stuck()));
  mesh->world().barrier();

  // The next launch in the same folder ignores the old file.
  const FlightExchange next(mesh->world(), board.leader(), folder.path());
  const auto none = next.gather(0.1);
  EXPECT_ALL_RANKS(none.flights.empty() && none.silent.size() == 2);
  EXPECT_EQ(ranks_where(next.claim()), 1);
  // Nothing is received from the second node.
  EXPECT_EQ(me == 0 ? next.leave(board.flights()) : "", "");
  mesh->world().barrier();
  const auto half = next.gather(0.1);
  ASSERT_ALL_RANKS(half.silent.size() == 1);
  const int from = (ranks + 1) / 2;
  const std::string names = from == last
                                ? "rank " + std::to_string(last)
                                : "ranks " + std::to_string(from) + "-" + std::to_string(last);
  EXPECT_EQ(half.silent[0], names + " on " + host_name());
  EXPECT_EQ(static_cast<int>(half.flights.size()), from);
}

TEST_F(TwoNodes, OneWatchdogSpeaksForAll) {
  if (ranks == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto exchange =
      std::make_shared<FlightExchange>(mesh->world(), board.leader(), folder.path());
  std::string said, lines;
  {
    std::atomic<bool> ended = false;
    Watchdog dog({.timeout_seconds = 0.3,
                  .rank = me,
                  .on_timeout =
                      [&](const std::string& report) {
                        said = report;
                        ended = true;
                      },
                  .board = &board,
                  .directory = folder.path(),
                  .on_line = [&](const std::string& line) { lines += line; },
                  .exchange = exchange,
                  .exchange_seconds = 20});
    progress();
    dog.beat(me == last ? "stuck here" : "waits", 0);
    // One of all ranks reports: the others would wait until it ends the job.
    for (double until = now_seconds() + 30; ranks_where(ended) == 0 && now_seconds() < until;)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(ranks_where(!said.empty()), 1);
  EXPECT_EQ(ranks_where(!lines.empty()), 2) << "one of each node says what it knows";
  if (!said.empty()) {
    for (const std::string& words : {std::string("choir: watchdog: all nodes together: "), stuck(),
                                     std::string("; stopping all ranks with exit code 5")})
      EXPECT_TRUE(has(said, words)) << words << " in " << said;
    EXPECT_FALSE(has(said, "nothing came from")) << said;
    EXPECT_TRUE(std::filesystem::file_size(folder.path() + "/report.txt") > 0);
  }
}

}  // namespace
}  // namespace choir
