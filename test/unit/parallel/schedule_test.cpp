// Tests of the generators of pipeline schedules: their output, and that all of it is valid.
#include "choir/parallel/pipeline/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "src/parallel/pipeline/schedule_simulation.hpp"
#include "test/unit/parallel/schedule_case.hpp"

namespace choir {
namespace {

using test::short_form;

// By hand from the rules: p - 1 - stage forwards first, then F and B alternate, and neighbours
// exchange activation and gradient at once.
TEST(Schedule, OneForwardOneBackward) {
  const Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, {2, 3});
  EXPECT_EQ(short_form(schedule, 0), "F0 >a0 F1 {>a1 <g0} B0 F2 {>a2 <g1} B1 <g2 B2");
  EXPECT_EQ(short_form(schedule, 1), "<a0 F0 B0 {<a1 >g0} F1 B1 {<a2 >g1} F2 B2 >g2");
}

TEST(Schedule, OrderOfComputation) {
  const auto order = [](ScheduleKind kind, PipelineShape shape, int stage) {
    return short_form(compute_order(kind, shape), stage);
  };
  EXPECT_EQ(order(ScheduleKind::gpipe, {2, 3}, 1), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(order(ScheduleKind::one_f_one_b, {3, 4}, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(order(ScheduleKind::one_f_one_b, {3, 2}, 0), "F0 F1 B0 B1");  // fewer than stages
  // Stage i delays W by i micro-batches.
  EXPECT_EQ(order(ScheduleKind::zb_h1, {2, 3}, 0), "F0 F1 B0 W0 F2 B1 W1 B2 W2");
  EXPECT_EQ(order(ScheduleKind::zb_h1, {2, 3}, 1), "F0 B0 F1 B1 W0 F2 B2 W1 W2");
  EXPECT_EQ(order(ScheduleKind::interleaved, {2, 2, 2}, 1),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0");
  // Micro-batch 3 of the second group of two does not exist: the others keep their order.
  EXPECT_EQ(order(ScheduleKind::interleaved, {2, 3, 2}, 1),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 B1.0 F2.1 B2.1 B2.0");
}

// Golden numbers of forwards before the first backward (one more than the warm-up if another
// forward follows it).
TEST(Schedule, InterleavedWarmUp) {
  const auto forwards_first = [](PipelineShape shape) {
    std::vector<int> counts;
    for (const ActionList& list : compute_order(ScheduleKind::interleaved, shape).actions)
      counts.push_back(static_cast<int>(
          std::find_if(list.begin(), list.end(),
                       [](const Action& a) { return a.kind == ActionKind::backward; }) -
          list.begin()));
    return counts;
  };
  EXPECT_EQ(forwards_first({4, 8, 2}), (std::vector<int>{10 + 1, 8 + 1, 6 + 1, 4 + 1}));
  EXPECT_EQ(forwards_first({4, 8, 4}), (std::vector<int>{18 + 1, 16 + 1, 14 + 1, 12 + 1}));
  EXPECT_EQ(forwards_first({4, 4, 2}), (std::vector<int>{8, 8, 6 + 1, 4 + 1}));  // at most m v
}

TEST(Schedule, EverySmallScheduleIsValid) {
  int cases = 0;
  test::each_shape([&](ScheduleKind kind, const PipelineShape& shape) {
    for (const Exchange exchange : test::kExchanges) {
      const Schedule schedule = make_schedule(kind, shape, exchange);
      EXPECT_EQ(test::error_of([&] { validate(schedule); }), "")
          << test::name_of_case(kind, shape) << " " << name_of(exchange);
      ++cases;
    }
  });
  EXPECT_EQ(cases, 8 * 16 * (1 + 1 + 3 + 1) * 3);
}

// Values that the validator checks only as upper limits are reached exactly.
TEST(Schedule, LiveActivations) {
  test::each_shape([](ScheduleKind kind, const PipelineShape& shape) {
    const int p = shape.stages, m = shape.micro_batches, v = shape.chunks;
    const std::vector<int> peaks = peak_live(make_schedule(kind, shape));
    for (int stage = 0; stage < p; ++stage) {
      int expected = std::min(p - stage, m);  // 1F1B, and interleaved with one chunk
      if (kind == ScheduleKind::gpipe) expected = m;
      if (kind == ScheduleKind::zb_h1) expected = std::min(p, m);
      if (v > 1) expected = std::min(p * (v - 1) + 2 * (p - stage) - 1, m * v);
      const int peak = peaks[static_cast<std::size_t>(stage)];
      if (m % p == 0 || v == 1) {
        EXPECT_EQ(peak, expected) << test::name_of_case(kind, shape) << " stage " << stage;
      }
      EXPECT_LE(peak, expected) << test::name_of_case(kind, shape) << " stage " << stage;
      EXPECT_LE(peak, promised_live(kind, shape, stage));
    }
  });
  // In units of a stage's share of the layers: p (1 + (p - 1) / (p v)) = 5.5, at most m.
  EXPECT_EQ(peak_live(make_schedule(ScheduleKind::interleaved, {4, 8, 2}))[0], 2 * 5.5);
  EXPECT_EQ(peak_live(make_schedule(ScheduleKind::interleaved, {4, 4, 2}))[0], 2 * 4);
}

TEST(Schedule, MessagesHaveTheSameNumberAtBothEnds) {
  const PipelineShape shape{3, 4, 2};
  const Schedule schedule = make_schedule(ScheduleKind::interleaved, shape);
  std::set<std::size_t> sent, received;
  for (int stage = 0; stage < shape.stages; ++stage)
    for (const Action& a : schedule.actions[static_cast<std::size_t>(stage)]) {
      if (!is_communication(a.kind)) continue;
      const std::size_t number = message_of(shape, stage, a);
      EXPECT_LT(number, message_count(shape));
      EXPECT_TRUE((is_send(a.kind) ? sent : received).insert(number).second) << describe(a);
    }
  EXPECT_EQ(sent, received);
  EXPECT_EQ(sent.size(), 2u * 5 * 4);  // two directions, between 6 virtual stages, 4 micro-batches
  const Action up{ActionKind::send_activation, 1, 0}, round{ActionKind::receive_activation, 1, 1};
  EXPECT_EQ(peer_of(shape, 0, up), 1);
  EXPECT_EQ(peer_of(shape, 2, up), 0);
  EXPECT_EQ(peer_of(shape, 0, round), 2);
  EXPECT_EQ(message_of(shape, 2, up), message_of(shape, 0, round));
  EXPECT_EQ(peer_of(shape, 0, {ActionKind::send_gradient, 1, 0}), -1);
  EXPECT_EQ(peer_of(shape, 2, {ActionKind::send_activation, 1, 1}), -1);
}

// The guarantee of with_communication: if messages are executed one at a time in its order, without
// joining any, they cannot deadlock either.
TEST(Schedule, OneGlobalOrderOfMessages) {
  test::each_shape([](ScheduleKind kind, const PipelineShape& shape) {
    Schedule schedule = make_schedule(kind, shape);
    for (ActionList& list : schedule.actions)
      for (Action& a : list) a.joined = false;
    EXPECT_EQ(test::error_of([&] { validate(schedule); }), "") << test::name_of_case(kind, shape);
  });
}

TEST(Schedule, RefusesWhatItCannotBe) {
  const auto error = [](ScheduleKind kind, PipelineShape shape) {
    EXPECT_THROW(make_schedule(kind, shape), DeckError);
    return test::error_of([&] { make_schedule(kind, shape); });
  };
  EXPECT_EQ(error(ScheduleKind::gpipe, {0, 1, 1}),
            "parallel.pipeline: 0 is below 1 | the nearest legal value is 1");
  EXPECT_EQ(error(ScheduleKind::zb_h1, {2, -1, 1}),
            "train.grad_accum: -1 is below 1 | the nearest legal value is 1");
  EXPECT_EQ(error(ScheduleKind::interleaved, {2, 1, 0}),
            "parallel.virtual_stages: 0 is below 1 | the nearest legal value is 1");
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
    EXPECT_EQ(error(kind, {2, 4, 2}),
              fmt::format("parallel.virtual_stages: 2 with parallel.schedule \"{}\", which has one "
                          "virtual stage per stage | set parallel.virtual_stages=1 or "
                          "parallel.schedule=\"interleaved\"",
                          name_of(kind)));
}

TEST(Schedule, AnOrderThatContradictsItselfGetsNoMessages) {
  Schedule order = compute_order(ScheduleKind::one_f_one_b, {2, 2});
  std::swap(order.actions[0][1], order.actions[0][2]);  // F0 B0 F1 B1: still possible
  EXPECT_EQ(test::error_of([&] { with_communication(order); }), "");
  std::swap(order.actions[0][0], order.actions[0][1]);  // B0 F0
  EXPECT_EQ(test::error_of([&] { with_communication(order); }),
            "stage 0 waits forever for the input of its backward of micro-batch 0, chunk 0 | the "
            "compute order of this schedule contradicts itself");
}

}  // namespace
}  // namespace choir
