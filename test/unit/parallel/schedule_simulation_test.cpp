// The simulator of pipeline schedules: golden makespans, closed forms, and small cases by hand.
#include "src/parallel/pipeline/schedule_simulation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "choir/core/philox.hpp"
#include "choir/parallel/pipeline/schedule.hpp"
#include "test/unit/parallel/schedule_case.hpp"

namespace choir {
namespace {

using Kind = ActionKind;
constexpr ScheduleKind k1f1b = ScheduleKind::one_f_one_b;

/// Equal stages, each divided into equal chunks; messages are free.
Simulation run(ScheduleKind kind, const PipelineShape& shape, const ChunkCost& stage = {},
               Exchange exchange = Exchange::overlapped) {
  const double v = shape.chunks;
  const ChunkCost chunk{stage.forward / v, stage.backward / v, stage.backward_input / v,
                        stage.backward_weight / v};
  return simulate(make_schedule(kind, shape, exchange), uniform_costs(shape, chunk));
}
double makespan(ScheduleKind kind, const PipelineShape& shape, const ChunkCost& stage = {}) {
  return run(kind, shape, stage).makespan;
}

/// Error of sums of at most about 200 times of up to 100: 200 * 100 * 2^-53 < 1e-11.
constexpr double kRounding = 1e-11;

// F = 1, full backward 2, or B = W = 1. The numbers are those of independent simulations.
TEST(ScheduleSimulation, GoldenMakespans) {
  EXPECT_EQ(makespan(k1f1b, {4, 8}), 33);
  EXPECT_EQ(makespan(k1f1b, {4, 4}), 21);
  EXPECT_EQ(makespan(k1f1b, {8, 16}), 69);
  EXPECT_EQ(makespan(k1f1b, {2, 3}), 12);
  EXPECT_EQ(makespan(k1f1b, {4, 2}), 15);
  constexpr ScheduleKind kInterleaved = ScheduleKind::interleaved;
  EXPECT_EQ(makespan(kInterleaved, {4, 8, 2}), 28.5);
  EXPECT_EQ(makespan(kInterleaved, {4, 4, 2}), 16.5);
  EXPECT_EQ(makespan(kInterleaved, {4, 8, 4}), 26.25);
  EXPECT_NEAR(makespan(kInterleaved, {8, 16, 3}), 55, kRounding);
  EXPECT_EQ(makespan(kInterleaved, {2, 4, 2}), 13.5);
  EXPECT_EQ(makespan(ScheduleKind::zb_h1, {4, 8}), 27);
  EXPECT_EQ(makespan(ScheduleKind::zb_h1, {4, 4}), 15);
  EXPECT_EQ(makespan(ScheduleKind::zb_h1, {8, 16}), 55);
  EXPECT_EQ(makespan(ScheduleKind::zb_h1, {2, 3}), 10);
  EXPECT_NEAR(makespan(ScheduleKind::zb_h1, {4, 8}, {.backward_weight = 0.8}), 26.0, kRounding);
}

// Idle time per stage over busy time: (p-1)/m of GPipe and 1F1B, (p-1)/(v m) interleaved,
// (p-1)(F+B-W)/(m(F+B+W)) of ZB-H1 with m >= p.
TEST(ScheduleSimulation, BubbleOfClosedForm) {
  test::each_shape([](ScheduleKind kind, const PipelineShape& shape) {
    const double p = shape.stages, m = shape.micro_batches, v = shape.chunks;
    if (v > 1 && shape.micro_batches % shape.stages != 0) return;
    if (kind == ScheduleKind::zb_h1 && m < p) return;
    const ChunkCost cost{.backward = 1.7, .backward_weight = 0.8};
    const bool split = kind == ScheduleKind::zb_h1;
    const double busy = m * (split ? 2.8 : 2.7);
    const double bubble = split ? (p - 1) * 1.2 / busy : (p - 1) / (v * m);
    const Simulation simulation = run(kind, shape, cost);
    const std::string name = test::name_of_case(kind, shape);
    EXPECT_NEAR(simulation.makespan, busy * (1 + bubble), kRounding) << name;
    EXPECT_NEAR(simulation.bubble_fraction(), bubble / (1 + bubble), 1e-13) << name;
    for (std::size_t s = 0; s < simulation.busy.size(); ++s) {
      EXPECT_NEAR(simulation.busy[s], busy, kRounding) << name;
      EXPECT_NEAR(simulation.idle(s), bubble * busy, 2 * kRounding) << name;
    }
  });
}

// If the last group of micro-batches is not full, interleaving costs at most as much as with a full
// group, and at least as much as the longest chain of one micro-batch behind the work of a stage.
TEST(ScheduleSimulation, InterleavedWithoutDivision) {
  test::each_shape([](ScheduleKind kind, const PipelineShape& shape) {
    if (shape.chunks == 1 || shape.micro_batches % shape.stages == 0) return;
    const int p = shape.stages, full = (shape.micro_batches + p - 1) / p * p;
    const double time = makespan(kind, shape);
    EXPECT_LE(time, makespan(kind, {p, full, shape.chunks}) + kRounding);
    EXPECT_GE(time, 3 * (shape.micro_batches + (p - 1.0) / shape.chunks) - kRounding);
  });
}

TEST(ScheduleSimulation, FreeMessagesNeverDelay) {
  test::each_shape([](ScheduleKind kind, const PipelineShape& shape) {
    if (kind == ScheduleKind::interleaved && shape.chunks > 1) return;  // rings really wait
    const double free = makespan(kind, shape);
    for (const Exchange exchange : {Exchange::blocking, Exchange::buffered})
      EXPECT_EQ(run(kind, shape, {}, exchange).makespan, free)
          << test::name_of_case(kind, shape) << " " << name_of(exchange);
  });
}

// The second stage takes twice as long. Stage 0: F 0-1, F 1-2, B 7-9, F 9-10, B 13-15, B 19-21.
TEST(ScheduleSimulation, UnevenStages) {
  const Schedule schedule = make_schedule(k1f1b, {2, 3}, Exchange::overlapped);
  PipelineCosts costs = uniform_costs(schedule.shape, {});
  costs.chunks[1] = {2, 4, 2, 2};
  const Simulation simulation = simulate(schedule, costs);
  EXPECT_EQ(simulation.makespan, 21);
  EXPECT_EQ(simulation.busy, (std::vector<double>{9, 18}));
  EXPECT_EQ(simulation.idle(0), 12);
  EXPECT_EQ(simulation.idle(1), 3);
  EXPECT_DOUBLE_EQ(simulation.bubble_fraction(), 15.0 / 42);
  std::vector<double> begins;
  for (std::size_t k = 0; k < schedule.actions[0].size(); ++k)
    if (!is_communication(schedule.actions[0][k].kind))
      begins.push_back(simulation.intervals[0][k].begin);
  EXPECT_EQ(begins, (std::vector<double>{0, 1, 7, 9, 13, 19}));
  EXPECT_EQ(simulation.peak_live, (std::vector<int>{2, 1}));
}

TEST(ScheduleSimulation, OneMicroBatchPaysEveryMessage) {
  for (const Exchange exchange : test::kExchanges) {
    const Schedule schedule = make_schedule(k1f1b, {4, 1}, exchange);
    PipelineCosts costs = uniform_costs(schedule.shape, {}, {0.5, 8}, 2);
    EXPECT_EQ(simulate(schedule, costs).makespan, 4 * 3 + 2 * 3 * (0.5 + 2 / 8.0));
    costs.links[1].latency = 1.5;  // between stages 1 and 2, there and back
    EXPECT_EQ(simulate(schedule, costs).makespan, 12 + 2 * (2 * 0.75 + 1.75));
  }
}

// GPipe, 2 stages, 3 micro-batches; a message occupies the wire for 5 and arrives 2 later.
// Buffered: forwards are sent from 1, the wire is free again at 6, 11, 16: F2 of stage 1 at 18-19;
// backwards end at 21, 23, 25, the wire takes 21-26-31-36: the last B of stage 0 at 38-40.
// Blocking: every message stops both sides: stage 1 has F2 24-25, B0 25-27, B1 34-36, B2 43-45;
// stage 0 B2 52-54.
TEST(ScheduleSimulation, MessagesShareTheWire) {
  for (const auto& [exchange, expected] : {std::pair{Exchange::overlapped, 40.0},
                                           {Exchange::buffered, 40.0},
                                           {Exchange::blocking, 54.0}}) {
    const Schedule schedule = make_schedule(ScheduleKind::gpipe, {2, 3}, exchange);
    const PipelineCosts costs = uniform_costs(schedule.shape, {}, {2, 2}, 10);
    EXPECT_EQ(simulate(schedule, costs).makespan, expected) << name_of(exchange);
  }
}

// Two stages with two virtual stages each: both messages between the chunks use the same wire.
TEST(ScheduleSimulation, TwoStagesHaveOneLink) {
  const Schedule schedule = make_schedule(ScheduleKind::interleaved, {2, 1, 2});
  PipelineCosts costs = uniform_costs(schedule.shape, {}, {1});
  costs.links[1].latency = 100;  // only link 0 is between the last stage and stage 0
  EXPECT_EQ(simulate(schedule, costs).makespan, 4 * 3 + 6 * 1);
  const Schedule ring = make_schedule(ScheduleKind::interleaved, {3, 1, 2});
  PipelineCosts three = uniform_costs(ring.shape, {}, {1});
  three.links[2].latency = 100;  // stage 2 to stage 0, once in forward and once in backward
  EXPECT_EQ(simulate(ring, three).makespan, 6 * 3 + 8 * 1 + 2 * 100);
}

/// The times at which a virtual stage ended the forward (or the input gradient) of a micro-batch,
/// and began it.
struct Ends {
  explicit Ends(const PipelineShape& shape)
      : forward(static_cast<std::size_t>(shape.virtual_stages() * shape.micro_batches)),
        backward(forward) {}
  std::vector<Interval> forward, backward;
};

// For any costs a stage does one operation at a time, and no operation starts before its input can
// have arrived. The check uses only the time stamps.
TEST(ScheduleSimulation, TimeStampsRespectTheDataFlow) {
  const PhiloxKey key = philox_key(1, "durations");
  std::uint64_t draws = 0;
  const auto random = [&] { return 0.1 + uniform01(philox_at(key, draws++)[0]); };
  test::each_shape([&](ScheduleKind kind, const PipelineShape& shape) {
    PipelineCosts costs = uniform_costs(shape, {}, {}, 3);
    for (ChunkCost& c : costs.chunks) c = {random(), random(), random(), random()};
    for (Link& link : costs.links) link = {random(), 10 * random()};
    for (const Exchange exchange : test::kExchanges) {
      const Schedule schedule = make_schedule(kind, shape, exchange);
      const Simulation simulation = simulate(schedule, costs);
      Ends ends(shape);
      const auto at = [&](int u, int j) {
        return static_cast<std::size_t>(u * shape.micro_batches + j);
      };
      for (std::size_t s = 0; s < schedule.actions.size(); ++s) {
        double now = 0;
        for (std::size_t k = 0; k < schedule.actions[s].size(); ++k) {
          const Action& a = schedule.actions[s][k];
          const Interval& t = simulation.intervals[s][k];
          ASSERT_LE(t.begin, t.end);
          ASSERT_LE(t.end, simulation.makespan);
          if (is_communication(a.kind)) continue;
          ASSERT_LE(now, t.begin);
          now = t.end;
          const std::size_t cell =
              at(shape.virtual_stage(static_cast<int>(s), a.chunk), a.micro_batch);
          if (a.kind == Kind::forward) ends.forward[cell] = t;
          if (a.kind == Kind::backward || a.kind == Kind::backward_input) ends.backward[cell] = t;
        }
      }
      for (int u = 0; u + 1 < shape.virtual_stages(); ++u)
        for (int j = 0; j < shape.micro_batches; ++j) {
          const int a = u % shape.stages, b = (u + 1) % shape.stages;
          const Link& link = costs.links[static_cast<std::size_t>(
              std::abs(a - b) == 1 ? std::min(a, b) : std::max(a, b))];
          const double message =
              shape.stages == 1 ? 0 : link.latency + costs.message_bytes / link.bytes_per_second;
          ASSERT_GE(ends.forward[at(u + 1, j)].begin + kRounding,
                    ends.forward[at(u, j)].end + message);
          ASSERT_GE(ends.backward[at(u, j)].begin + kRounding,
                    ends.backward[at(u + 1, j)].end + message);
        }
    }
  });
}

TEST(ScheduleSimulation, RefusesCostsThatDoNotFit) {
  const Schedule schedule = make_schedule(k1f1b, {3, 2});
  const PipelineCosts good = uniform_costs(schedule.shape, {});
  const auto error = [&](auto&& spoil) {
    PipelineCosts costs = good;
    spoil(costs);
    return test::error_of([&] { simulate(schedule, costs); });
  };
  EXPECT_EQ(error([](PipelineCosts&) {}), "");
  EXPECT_EQ(error([](PipelineCosts& c) { c.chunks.pop_back(); }),
            "pipeline costs: 2 chunk costs for 3 | give one for each");
  EXPECT_EQ(error([](PipelineCosts& c) { c.links.emplace_back(); }),
            "pipeline costs: 4 links for 3 | give one for each");
  EXPECT_EQ(error([](PipelineCosts& c) { c.chunks[1].backward = -1; }),
            "pipeline costs: chunk duration of -1 | give a finite number that is not negative");
  EXPECT_EQ(error([](PipelineCosts& c) { c.links[0].latency = NAN; }),
            "pipeline costs: latency of nan | give a finite number that is not negative");
  EXPECT_EQ(error([](PipelineCosts& c) { c.links[2].bytes_per_second = 0; }),
            "pipeline costs: bandwidth of 0 | give bytes per second above 0, or infinity for a "
            "free link");
  EXPECT_EQ(error([](PipelineCosts& c) { c.message_bytes = INFINITY; }),
            "pipeline costs: message bytes of inf | give a finite number that is not negative");
}

}  // namespace
}  // namespace choir
