// Tests of the validator of pipeline schedules: valid ones are broken in many ways, and each is
// refused with its reason.
#include "choir/parallel/pipeline/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/parallel/pipeline/schedule_simulation.hpp"
#include "test/unit/parallel/schedule_case.hpp"

namespace choir {
namespace {

using Kind = ActionKind;

Schedule two_stages() {
  return make_schedule(ScheduleKind::one_f_one_b, {2, 3});
}

ActionList::iterator find(Schedule& schedule, int stage, Kind kind, int micro_batch,
                          int chunk = 0) {
  ActionList& list = schedule.actions[static_cast<std::size_t>(stage)];
  const auto found = std::find_if(list.begin(), list.end(), [&](const Action& a) {
    return a.kind == kind && a.micro_batch == micro_batch && a.chunk == chunk;
  });
  EXPECT_NE(found, list.end()) << "the test looks for what the schedule does not have";
  return found;
}

/// Checks that it is refused with these words after the name of the schedule and the stage.
void expect_refused(const Schedule& broken, int stage, const std::string& words) {
  const std::string error = test::error_of([&] { validate(broken); });
  EXPECT_NE(error.find(fmt::format("chunks: stage {}: {} |", stage, words)), std::string::npos)
      << error;
}

TEST(ScheduleCheck, Missing) {
  Schedule s = two_stages();
  s.actions[0].erase(find(s, 0, Kind::forward, 1));
  expect_refused(s, 0, "send_activation of micro-batch 1, chunk 0 comes before its forward");
  s = two_stages();
  s.actions[0].erase(find(s, 0, Kind::backward, 2));
  expect_refused(s, 0, "backward or backward_input of micro-batch 2, chunk 0 is missing");
  s = two_stages();
  s.actions[1].erase(find(s, 1, Kind::send_gradient, 2));
  expect_refused(s, 1, "send_gradient of micro-batch 2, chunk 0 is missing");
  s = two_stages();
  s.actions[1].erase(find(s, 1, Kind::receive_activation, 0));
  expect_refused(s, 1, "forward of micro-batch 0, chunk 0 comes before the receive of its input");
  s = make_schedule(ScheduleKind::zb_h1, {2, 3});
  s.actions[1].pop_back();
  expect_refused(s, 1, "backward or backward_weight of micro-batch 2, chunk 0 is missing");
  s = two_stages();
  s.actions.pop_back();
  EXPECT_EQ(test::error_of([&] { validate(s); }),
            "schedule 1f1b of 2 stages has 1 lists of actions | give one list for each stage");
}

TEST(ScheduleCheck, Twice) {
  Schedule s = two_stages();
  const Action again = *find(s, 1, Kind::forward, 1);
  s.actions[1].push_back(again);
  expect_refused(s, 1, "forward of micro-batch 1, chunk 0 comes twice");
  s = two_stages();
  s.actions[0].push_back({Kind::backward_weight, 0, 0});  // backward has done it
  expect_refused(s, 0, "backward_weight of micro-batch 0, chunk 0 comes twice");
  s = two_stages();
  s.actions[0].push_back({Kind::send_activation, 2, 0});
  expect_refused(s, 0, "send_activation of micro-batch 2, chunk 0 comes twice");
}

TEST(ScheduleCheck, Order) {
  Schedule s = two_stages();
  std::iter_swap(find(s, 0, Kind::forward, 0), find(s, 0, Kind::forward, 1));
  expect_refused(s, 0, "forward of micro-batch 1, chunk 0 comes where micro-batch 0 is due");
  s = two_stages();
  std::iter_swap(find(s, 1, Kind::forward, 0), find(s, 1, Kind::backward, 0));
  expect_refused(s, 1, "backward of micro-batch 0, chunk 0 comes before its forward");
  s = make_schedule(ScheduleKind::zb_h1, {2, 3});
  std::iter_swap(find(s, 0, Kind::backward_input, 0), find(s, 0, Kind::backward_weight, 0));
  expect_refused(s, 0, "backward_weight of micro-batch 0, chunk 0 comes before its backward_input");
  s = two_stages();
  std::iter_swap(find(s, 0, Kind::backward, 2), find(s, 0, Kind::receive_gradient, 2));
  expect_refused(s, 0,
                 "backward of micro-batch 2, chunk 0 comes before the receive of its gradient");
  s = two_stages();
  std::iter_swap(find(s, 1, Kind::backward, 2), find(s, 1, Kind::send_gradient, 2));
  expect_refused(s, 1, "send_gradient of micro-batch 2, chunk 0 comes before its backward");
}

TEST(ScheduleCheck, ChunksOfOneStage) {
  Schedule s = make_schedule(ScheduleKind::interleaved, {1, 2, 2});
  EXPECT_EQ(test::short_form(s, 0), "F0.0 F0.1 B0.1 F1.0 B0.0 F1.1 B1.1 B1.0");
  std::iter_swap(find(s, 0, Kind::forward, 0, 0), find(s, 0, Kind::forward, 0, 1));
  expect_refused(s, 0,
                 "forward of micro-batch 0, chunk 1 comes before the forward of the chunk before");
  s = make_schedule(ScheduleKind::interleaved, {1, 2, 2});
  std::iter_swap(find(s, 0, Kind::backward, 1, 0), find(s, 0, Kind::backward, 1, 1));
  expect_refused(
      s, 0, "backward of micro-batch 1, chunk 0 comes before the backward of the chunk behind");
}

TEST(ScheduleCheck, WhatDoesNotBelong) {
  Schedule s = two_stages();
  s.actions[1].push_back({Kind::send_activation, 0, 0});  // the last stage has no successor
  expect_refused(s, 1, "send_activation of micro-batch 0, chunk 0 has no stage at the other end");
  s = make_schedule(ScheduleKind::one_f_one_b, {1, 1});
  s.actions[0].insert(s.actions[0].begin(), {Kind::receive_activation, 0, 0});
  expect_refused(s, 0,
                 "receive_activation of micro-batch 0, chunk 0 has no stage at the other end");
  s = two_stages();
  s.actions[0].push_back({Kind::forward, 3, 0});
  expect_refused(s, 0, "forward of micro-batch 3, chunk 0 is outside the schedule");
  s = two_stages();
  s.actions[0].push_back({Kind::forward, 0, 1});
  expect_refused(s, 0, "forward of micro-batch 0, chunk 1 is outside the schedule");
  s = two_stages();
  find(s, 0, Kind::forward, 1)->joined = true;
  expect_refused(s, 0,
                 "forward of micro-batch 1, chunk 0 is joined to what follows, but only "
                 "communication can be");
  s = two_stages();
  find(s, 1, Kind::send_gradient, 2)->joined = true;  // nothing follows
  expect_refused(s, 1,
                 "send_gradient of micro-batch 2, chunk 0 is joined to what follows, but only "
                 "communication can be");
}

TEST(ScheduleCheck, MoreLiveActivationsThanPromised) {
  Schedule s = make_schedule(ScheduleKind::gpipe, {2, 3});
  s.kind = ScheduleKind::one_f_one_b;
  expect_refused(s, 0,
                 "forward of micro-batch 2, chunk 0 makes 3 live activations, 2 are promised");
}

// Two stages with two chunks: activations and gradients share both channels. An activation that is
// sent after the next gradient is still sent in time, but out of order.
TEST(ScheduleCheck, OrderOnTheChannel) {
  Schedule s = make_schedule(ScheduleKind::interleaved, {2, 4, 2});
  for (ActionList& list : s.actions)
    for (Action& a : list) a.joined = false;
  ASSERT_EQ(test::error_of([&] { validate(s); }), "");
  const auto activation = find(s, 1, Kind::send_activation, 3);
  const auto gradient = std::find_if(activation, s.actions[1].end(),
                                     [](const Action& a) { return a.kind == Kind::send_gradient; });
  ASSERT_NE(gradient, s.actions[1].end());
  std::rotate(activation, activation + 1, gradient + 1);
  const std::string error = test::error_of([&] { validate(s); });
  EXPECT_NE(error.find("stage 0: receive_activation of micro-batch 3, chunk 1 takes message"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("of stage 1, which is its send_gradient"), std::string::npos) << error;
}

// Both stages send first, and neither receives: this is the reason for joined communication.
TEST(ScheduleCheck, DeadlockWithoutBuffersOnly) {
  Schedule s = two_stages();
  ASSERT_EQ(test::short_form(s, 1).substr(0, 20), "<a0 F0 B0 {<a1 >g0} ");
  const auto receive = find(s, 1, Kind::receive_activation, 1);
  receive->joined = false;
  std::iter_swap(receive, receive + 1);                  // >g0 <a1
  find(s, 0, Kind::send_activation, 1)->joined = false;  // >a1 <g0
  EXPECT_EQ(test::error_of([&] { validate(s); }),
            "schedule 1f1b deadlocks under blocking exchange: stage 0 waits in send_activation of "
            "micro-batch 1, chunk 0 for stage 1; stage 1 waits in send_gradient of micro-batch 0, "
            "chunk 0 for stage 0 | join the messages that neighbours exchange, and list "
            "messages in the same order on all stages");
  s.exchange = Exchange::buffered;
  EXPECT_EQ(simulate(s, uniform_costs(s.shape, {})).makespan, 12);
}

// Both stages receive first: no buffer helps.
TEST(ScheduleCheck, Deadlock) {
  Schedule s = make_schedule(ScheduleKind::one_f_one_b, {2, 1});
  ASSERT_EQ(test::short_form(s, 0), "F0 {>a0 <g0} B0");
  std::iter_swap(find(s, 0, Kind::send_activation, 0), find(s, 0, Kind::receive_gradient, 0));
  for (Action& a : s.actions[0]) a.joined = false;
  const std::string who =
      "stage 0 waits in receive_gradient of micro-batch 0, chunk 0 for stage 1; stage 1 waits in "
      "receive_activation of micro-batch 0, chunk 0 for stage 0";
  EXPECT_NE(test::error_of([&] { validate(s); }).find(who), std::string::npos);
  s.exchange = Exchange::buffered;
  const std::string error = test::error_of([&] { simulate(s, uniform_costs(s.shape, {})); });
  EXPECT_NE(error.find("deadlocks under buffered exchange: " + who), std::string::npos) << error;
}

}  // namespace
}  // namespace choir
