// Measures the cost of the watchdog; bench/watch_cost.sh compares it with a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "choir/comm/flight_log.hpp"
#include "choir/comm/mesh/mesh.hpp"
#include "src/comm/watch/watchdog.hpp"
#include "src/core/quantities.hpp"
#include "test/support/measured.hpp"
#include "test/support/mpi_test.hpp"

namespace choir {
namespace {

// Seconds of one of `count` calls, in the best of several rounds, because other programs use the
// cores, too.
template <class F>
double seconds_of(int count, const F& f) {
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const double start = now_seconds();
    for (int i = 0; i < count; ++i) f();
    best = std::min(best, (now_seconds() - start) / count);
  }
  return best;
}

TEST(WatchCost, IsMicrosecondsAtMost) {
  const int ranks = test::world_size();
  const auto mesh = Mesh::over_world(Layout(1, 1, ranks, 1), Transport::automatic);
  HeartbeatBoard board(mesh->node(), mesh->rank());
  Watchdog dog({.timeout_seconds = 1000, .rank = mesh->rank(), .board = &board});
  mesh->world().barrier();
  if (mesh->rank() == 0) {
    auto& recorder = FlightRecorder::of_process();
    SharedName name;
    name.set("dp");
    const CallRecord call{.call = CommCall::all_reduce, .sequence = 1, .bytes = 64, .start = 1};
    const double record = seconds_of(20000, [&] {
      CallRecord now = call;
      now.start = now_seconds();
      recorder.change(recorder.begin(name, -1, now), CallState::done, now_seconds());
    });
    const double beat = seconds_of(20000, [&] { dog.beat("step 12: forward"); });
    const double look = seconds_of(100, [&] {
      board.tick();
      EXPECT_EQ(board.dead(), "");
    });
    std::printf("watch: %.0f ns a call, %.0f ns a phase, %.0f ns a look\n", 1e9 * record,
                1e9 * beat, 1e9 * look);
    test::print_measured("a call is recorded", record, "s", "below", 5e-6);
    test::print_measured("a phase is recorded", beat, "s", "below", 5e-6);
    test::print_measured("a look at the other ranks", look, "s", "below", 5e-3);
    EXPECT_LT(record, 5e-6);
    EXPECT_LT(beat, 5e-6);
    EXPECT_LT(look, 5e-3) << "twice a second";
  }
  mesh->world().barrier();
}

}  // namespace
}  // namespace choir
