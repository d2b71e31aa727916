#include "choir/comm/flight_log.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "test/support/count_allocations.hpp"

namespace choir {
namespace {

CallRecord call_number(std::uint64_t n) {
  return {.call = CommCall::all_gather, .group = 7, .sequence = n, .bytes = 10 * n, .start = 1.5};
}

struct Log {
  std::unique_ptr<FlightLog> log = std::make_unique<FlightLog>();
  SharedName name;
  Log() { name.set("dp"); }
};

TEST(FlightLog, KeepsTheLast64InOrder) {
  Log l;
  EXPECT_TRUE(l.log->records().empty());
  for (std::uint64_t n = 1; n <= 100; ++n) l.log->begin(l.name, -1, call_number(n));
  const std::vector<CallRecord> records = l.log->records();
  ASSERT_EQ(records.size(), 64u);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(records[i].sequence, 37 + i);
  const CallRecord& last = records.back();
  EXPECT_EQ(last.call, CommCall::all_gather);
  EXPECT_EQ(last.bytes, 1000u);
  EXPECT_EQ(last.group, 7u);
  EXPECT_EQ(last.name, "dp");
  EXPECT_EQ(last.peer, -1);
  EXPECT_EQ(last.start, 1.5);
  EXPECT_EQ(last.end, 0);
}

TEST(FlightLog, ARecordChangesUntilItIsOverwritten) {
  Log l;
  const std::uint64_t first = l.log->begin(l.name, -1, call_number(1));
  l.log->change(first, CallState::waiting);
  EXPECT_EQ(l.log->records()[0].state, CallState::waiting);
  l.log->change(first, CallState::done, 2.5);
  EXPECT_EQ(l.log->records()[0].state, CallState::done);
  EXPECT_EQ(l.log->records()[0].end, 2.5);
  for (std::uint64_t n = 2; n <= 65; ++n) l.log->begin(l.name, -1, call_number(n));
  l.log->change(first, CallState::failed, 9);  // the slot now has number 65
  for (const CallRecord& r : l.log->records()) EXPECT_EQ(r.state, CallState::started);
}

TEST(FlightLog, KnowsHowFarEachCommunicatorIs) {
  Log l;
  const int place = l.log->join("dp", 7, 1, 4);
  const int other = l.log->join("a name that is too long for its place", 8, 0, 2);
  CallRecord message = call_number(9);
  message.call = CommCall::send;
  l.log->begin(l.name, place, call_number(3));
  l.log->begin(l.name, place, message);  // not collective: not counted
  std::vector<GroupRecord> groups = l.log->groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].name, "dp");
  EXPECT_EQ(groups[0].rank, 1);
  EXPECT_EQ(groups[0].size, 4);
  EXPECT_EQ(groups[0].entered, 3u);
  EXPECT_EQ(groups[1].name, "a name that is too long for its");
  const auto moved = std::make_unique<FlightLog>();
  moved->take_over(*l.log);
  EXPECT_EQ(moved->records().size(), 2u);
  EXPECT_EQ(moved->groups().size(), 2u);
  moved->leave(other);
  EXPECT_EQ(moved->groups().size(), 1u);
  for (int i = 1; i < FlightLog::kGroups; ++i) EXPECT_GE(moved->join("x", 9, 0, 2), 0);
  EXPECT_EQ(moved->join("x", 9, 0, 2), -1);
}

// A reader gets one record or none, never a mixture: bytes and peer follow from the number.
TEST(FlightLog, IsReadWhileThreadsWrite) {
  Log l;
  std::vector<std::jthread> writers;  // they end with the test, also if it fails
  for (int t = 0; t < 2; ++t)
    writers.emplace_back([&](const std::stop_token& end) {
      for (std::uint64_t n = 1; !end.stop_requested(); ++n) {
        CallRecord call = call_number(n);
        call.peer = static_cast<int>(n & 0xffff);  // written last
        const std::uint64_t record = l.log->begin(l.name, -1, call);
        l.log->change(record, CallState::done, 2.5);
      }
    });
  std::size_t seen = 0;
  for (int i = 0; i < 2000 || (seen == 0 && i < 2000000); ++i)
    for (const CallRecord& r : l.log->records()) {
      ++seen;
      ASSERT_EQ(r.bytes, 10 * r.sequence);
      ASSERT_EQ(r.peer, static_cast<int>(r.sequence & 0xffff));
      ASSERT_EQ(r.name, "dp");
    }
  EXPECT_GT(seen, 0u);
}

TEST(FlightLog, WritingAllocatesNothing) {
  Log l;
  const CallRecord call = call_number(1);
  const std::int64_t before = test::allocations();
  for (int i = 0; i < 100; ++i) l.log->change(l.log->begin(l.name, -1, call), CallState::done, 1);
  EXPECT_EQ(test::allocations(), before);
}

TEST(FlightRecorder, MovesWithWhatItHas) {
  FlightRecorder& recorder = FlightRecorder::of_process();
  SharedName name;
  name.set("moved");
  const std::uint64_t record = recorder.begin(name, -1, call_number(41));
  const auto elsewhere = std::make_unique<FlightLog>();
  recorder.move_to(elsewhere.get());
  recorder.change(record, CallState::done, 3);
  ASSERT_FALSE(elsewhere->records().empty());
  EXPECT_EQ(elsewhere->records().back().sequence, 41u);
  EXPECT_EQ(elsewhere->records().back().state, CallState::done);
  recorder.move_to(nullptr);
  recorder.read([&](const FlightLog& log) {
    EXPECT_NE(&log, elsewhere.get());
    EXPECT_EQ(log.records().back().state, CallState::done);
  });
}

}  // namespace
}  // namespace choir
