// Tests of the executor on real messages: every schedule, the right tensor each time, no deadlock
// for any durations; the simulator's times; peers that do not answer.
#include "src/parallel/pipeline/pipeline_executor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>
#include <thread>

#include "choir/comm/mesh/mesh.hpp"
#include "src/comm/null_communicator.hpp"
#include "src/core/quantities.hpp"
#include "test/mpi/comm/kinds.hpp"
#include "test/mpi/parallel/deaf_communicator.hpp"
#include "test/support/count_allocations.hpp"
#include "test/support/exhaustive.hpp"
#include "test/support/measured.hpp"
#include "test/support/mpi_test.hpp"
#include "test/support/pipeline_case.hpp"

namespace choir::test {
namespace {

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// Number of ranks of a node that have reported: ranks that wait for each other's reports know when
/// to continue.
class Reports {
 public:
  explicit Reports(Communicator& node) : memory_(node.allocate(sizeof(std::atomic<int>))) {
    node.barrier();
  }
  void add() { ++count(); }
  void wait_for(int reports) {
    for (const double until = now_seconds() + 60; count() < reports && now_seconds() < until;)
      sleep_for(0.01);
  }

 private:
  std::atomic<int>& count() { return *static_cast<std::atomic<int>*>(memory_->block(0)); }
  std::unique_ptr<CommBuffer> memory_;
};

class Pipeline : public testing::Test {
 protected:
  std::unique_ptr<Communicator> comm = make_kind("node_outside");
  std::unique_ptr<Device> cpu = make_device(DeviceKind::cpu);
  const int rank = comm->rank(), size = comm->size();
};

// Sleeps of up to half a millisecond, drawn for every stage, action and run.
TEST_F(Pipeline, EveryMessageIsTheRightOneUnderEverySchedule) {
  int runs = 0;
  for (const std::int64_t count : {3, 9001})
    each_run(size, [&](ScheduleKind kind, const PipelineShape& shape) {
      for (const Exchange exchange : kExchanges) {
        const Schedule schedule = make_schedule(kind, shape, exchange);
        FakeStage stage(*cpu, shape, rank, count);
        std::mt19937 random(static_cast<unsigned>(1000 * ++runs + rank));
        stage.spend = [&](const Action&) {
          if (random() % 4 == 0) sleep_for(1e-6 * static_cast<double>(random() % 500));
        };
        PipelineExecutor executor(schedule, *comm);
        for (int repeat = 0; repeat < 2; ++repeat) {
          stage.begin();
          executor.run(stage);
          const std::string complaint = stage.complaint(kind == ScheduleKind::forward_only);
          EXPECT_ALL_RANKS(complaint.empty())
              << name_of_case(kind, shape) << " " << name_of(exchange) << ": " << complaint;
        }
      }
    });
}

// The planner's rank, which only counts, needs the memory and the traffic of the real one.
TEST_F(Pipeline, TheNullDeviceNeedsAsMuch) {
  const auto nowhere = make_null_communicator("pp", rank, size);
  const auto null = make_device(DeviceKind::null);
  each_run(size, [&](ScheduleKind kind, const PipelineShape& shape) {
    const Schedule schedule = make_schedule(kind, shape);
    FakeStage real(*cpu, shape, rank, 40), planned(*null, shape, rank, 40);
    comm->reset_traffic();
    nowhere->reset_traffic();
    PipelineExecutor(schedule, *comm).run(real);
    PipelineExecutor(schedule, *nowhere).run(planned);
    EXPECT_EQ(planned.complaint(kind == ScheduleKind::forward_only), "");
    EXPECT_EQ(real.peak(), planned.peak()) << name_of_case(kind, shape);
    EXPECT_EQ(comm->traffic().calls, nowhere->traffic().calls);
    EXPECT_EQ(comm->traffic().bytes, nowhere->traffic().bytes);
    EXPECT_TRUE(size > 1 || comm->traffic().calls == 0);
  });
  comm->barrier();
}

TEST_F(Pipeline, NothingIsAllocatedInARun) {
  const int chunks = 2;
  const PipelineShape shape{size, 5, chunks};
  for (const Exchange exchange : kExchanges) {
    FakeStage stage(*cpu, shape, rank, 5000);
    Watchdog watchdog({.timeout_seconds = 100, .rank = rank});
    PipelineExecutor executor(make_schedule(ScheduleKind::interleaved, shape, exchange), *comm,
                              {.watchdog = &watchdog, .clock = cpu.get()});
    executor.run(stage, "step 1");  // the arena's records grow in the first
    const std::int64_t from = allocations();
    executor.run(stage, "step 2");
    const std::int64_t to = allocations();
    EXPECT_ALL_RANKS(from == to) << to - from << " allocations, " << name_of(exchange);
  }
}

// Sleeps stand for work, so that two cores serve four ranks. They are long compared with the
// milliseconds that a busy machine needs to wake a thread, and are made longer if the machine stays
// so busy that this matters. Other processes only add time to a makespan and to the busy time of a
// rank: the minimum of all repeats counts, and none may be faster than the schedule allows.
TEST_F(Pipeline, TakesTheTimeThatTheSimulatorSays) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "what would be timed is ThreadSanitizer";
#endif
  if (size != 2 && size != 4 && !test::exhaustive()) GTEST_SKIP() << "needs 2 or 4 ranks";
  struct Case {
    ScheduleKind kind;
    int chunks;
  };
  double farthest = 0;  // of all makespans, relative to the simulated one
  for (const auto& [kind, chunks] :
       {Case{ScheduleKind::gpipe, 1}, Case{ScheduleKind::one_f_one_b, 1},
        Case{ScheduleKind::interleaved, 2}, Case{ScheduleKind::zb_h1, 1}})
    for (const Exchange exchange : kExchanges) {
      const PipelineShape shape{size, 5, chunks};
      const Schedule schedule = make_schedule(kind, shape, exchange);
      PipelineCosts costs = uniform_costs(shape, {});
      for (std::size_t u = 0; u < costs.chunks.size(); ++u) {  // 12 to 54 ms, uneven
        const double unit = (u % 3 == 1 ? 27e-3 : 18e-3) / (chunks > 1 ? 1.5 : 1);
        costs.chunks[u] = {unit, 2 * unit, 1.2 * unit, 0.8 * unit};
      }
      FakeStage stage(*cpu, shape, rank, 100);
      double slower = 1;
      stage.spend = [&](const Action& a) {
        const ChunkCost& cost =
            costs.chunks[static_cast<std::size_t>(shape.virtual_stage(rank, a.chunk))];
        sleep_for(slower * (a.kind == ActionKind::forward          ? cost.forward
                            : a.kind == ActionKind::backward       ? cost.backward
                            : a.kind == ActionKind::backward_input ? cost.backward_input
                                                                   : cost.backward_weight));
      };
      PipelineExecutor executor(schedule, *comm, {.clock = cpu.get()});
      const Simulation simulation = simulate(schedule, costs);
      const double bubble = simulation.bubble_fraction();
      const double near = 0.1 * simulation.makespan;
      const double as_idle =
          0.1 * bubble + 0.01;  // one stage has no time of which 10 % could be taken
      constexpr double kNever = std::numeric_limits<double>::infinity();
      double makespan = kNever, least_busy = kNever, idle = 1;
      const auto disturbed = [&] {
        return makespan > simulation.makespan + near || std::abs(idle - bubble) > as_idle;
      };
      for (int repeat = 0; repeat < 12 && disturbed(); ++repeat) {
        slower = 1 << (repeat / 4);
        if (repeat % 4 == 0) makespan = least_busy = kNever;
        stage.begin();
        comm->barrier();
        executor.run(stage);
        double last = 0, busy = 0;
        for (const ActionTime& t : executor.times()) {
          EXPECT_LE(t.begin, t.end) << describe(t.action);
          last = std::max(last, t.end / slower);
          if (!is_communication(t.action.kind)) busy += (t.end - t.begin) / slower;
        }
        comm->all_reduce(&last, 1, DType::f64, ReduceOp::max);
        makespan = std::min(makespan, last);
        least_busy = std::min(least_busy, busy);
        double all_busy = least_busy;
        comm->all_reduce(&all_busy, 1, DType::f64, ReduceOp::sum);
        idle = 1 - all_busy / (makespan * size);
      }
      farthest = std::max(farthest, std::abs(makespan / simulation.makespan - 1));
      EXPECT_NEAR(makespan, simulation.makespan, near)
          << name_of_case(kind, shape) << " " << name_of(exchange);
      EXPECT_NEAR(idle, bubble, as_idle) << name_of_case(kind, shape) << " " << name_of(exchange);
    }
  if (rank == 0)
    print_measured("a makespan differs from the simulated one by", 100 * farthest, "%", "below",
                   10);
}

TEST_F(Pipeline, SwappedMessagesAreRefused) {
  if (size == 1) GTEST_SKIP() << "needs 2 or more ranks";
  Schedule schedule = make_schedule(ScheduleKind::gpipe, {size, 3});
  ActionList& list = schedule.actions[0];
  const auto send = [&](int j) {
    return std::find_if(list.begin(), list.end(), [&](const Action& a) {
      return a.kind == ActionKind::send_activation && a.micro_batch == j;
    });
  };
  std::swap(send(1)->micro_batch, send(2)->micro_batch);
  const std::string words = error_of([&] { PipelineExecutor(schedule, *comm); });
  EXPECT_NE(words.find("stage 0: send_activation of micro-batch 2"), std::string::npos) << words;
}

// Stage 0 loses one message: instead of hanging without a message both ends report what they wait
// for. (Then the message is sent after all, because otherwise the program would end.)
TEST_F(Pipeline, ALostMessageIsNamedByTheWatchdog) {
  if (size != 2) GTEST_SKIP() << "needs 2 ranks";
  const auto node = make_kind("node");
  for (const Exchange exchange : kExchanges) {
    const PipelineShape shape{2, 4};
    DeafCommunicator deaf(*comm);
    Reports reports(*node);
    std::mutex mutex;
    std::string report;
    FakeStage stage(*cpu, shape, rank, 10);
    Watchdog watchdog({.timeout_seconds = 0.3,
                       .rank = rank,
                       .host = "here",
                       .on_timeout = [&](const std::string& text) {
                         {
                           const std::lock_guard lock(mutex);
                           report = text;
                         }
                         reports.add();
                         reports.wait_for(2);  // so that the other one can report, too
                         deaf.heal();
                       }});
    if (rank == 0) deaf.lose_send(2);
    PipelineExecutor executor(make_schedule(ScheduleKind::one_f_one_b, shape, exchange), deaf,
                              {.watchdog = &watchdog});
    executor.run(stage, "step 7");
    watchdog.rest();
    const std::string place =
        rank == 0 ? "\"step 7: stage 0 of 2, waiting for "
                  : "\"step 7: stage 1 of 2, waiting for receive_activation of micro-batch 2, "
                    "chunk 0\"";
    const std::lock_guard lock(mutex);
    EXPECT_ALL_RANKS(report.find(place) != report.npos) << name_of(exchange) << ": " << report;
    EXPECT_ALL_RANKS(stage.complaint().empty()) << stage.complaint();
  }
}

// A stage that hangs while it computes is reported by all ranks as the culprit, although it has
// begun as much as the stages that wait for it.
TEST_F(Pipeline, AStageThatHangsIsNamedByTheOthers) {
  if (size < 2) GTEST_SKIP() << "needs 2 or more ranks";
  const PipelineShape shape{size, 3};
  const auto node = make_kind("node");
  HeartbeatBoard board(*node, rank);
  Reports reports(*node);
  std::mutex mutex;
  std::string report;
  const auto remember = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    report = text;
    reports.add();
  };
  Watchdog watchdog({.timeout_seconds = 0.3,
                     .rank = rank,
                     .host = "here",
                     .on_timeout = remember,
                     .board = &board});
  FakeStage stage(*cpu, shape, rank, 10);
  const int culprit = size - 1;
  stage.spend = [&](const Action& a) {
    if (rank == culprit && a.kind == ActionKind::forward && a.micro_batch == 1)
      reports.wait_for(size);
  };
  PipelineExecutor executor(make_schedule(ScheduleKind::one_f_one_b, shape), *comm,
                            {.watchdog = &watchdog});
  executor.run(stage, "step 3");
  watchdog.rest();
  const std::lock_guard lock(mutex);
  EXPECT_ALL_RANKS(
      report.find(fmt::format("rank {0} is behind, in phase \"step 3: stage {0} of {1}, forward of "
                              "micro-batch 1, chunk 0\"",
                              culprit, size)) != report.npos)
      << report;
  EXPECT_ALL_RANKS(rank > 0 || report.find("in phase \"step 3: stage 0 of") != report.npos)
      << report;
}

}  // namespace
}  // namespace choir::test
