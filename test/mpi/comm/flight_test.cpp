// Tests that every call of every kind of communicator leaves a record, which other ranks of the
// node can read; and that calls that differ between ranks are found before they begin.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "choir/comm/flight_log.hpp"
#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/comm/watch/heartbeat_board.hpp"
#include "src/core/quantities.hpp"
#include "test/mpi/comm/kinds.hpp"
#include "test/support/count_allocations.hpp"
#include "test/support/mpi_test.hpp"

namespace choir {
namespace {

std::vector<CallRecord> records_of(const Communicator& comm) {
  std::vector<CallRecord> mine;
  FlightRecorder::of_process().read([&](const FlightLog& log) {
    for (const CallRecord& r : log.records())
      if (r.group == comm.id() && r.name == comm.name()) mine.push_back(r);
  });
  return mine;
}

class FlightOfKind : public testing::TestWithParam<const char*> {};

TEST_P(FlightOfKind, EveryCallIsRecorded) {
  const int ranks = test::world_size(), me = test::world_rank();
  if (ranks == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto comm = test::make_kind(GetParam());
  const auto n = static_cast<std::size_t>(ranks);
  constexpr std::size_t kCount = 6;
  const test::Memory memory(*comm, 2 * n * kCount * sizeof(float));
  auto* data = memory.as<float>();
  auto* second = data + n * kCount;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  std::vector<std::int64_t> counts(n, kBytes), offsets(n);
  for (std::size_t r = 0; r < n; ++r) offsets[r] = static_cast<std::int64_t>(r * kBytes);
  comm->all_reduce(data, kCount, DType::f32, ReduceOp::sum);
  comm->reduce_scatter(data, kCount, DType::f32, ReduceOp::max);
  comm->all_gather(data, kCount, DType::f32);
  comm->broadcast(data, kBytes, 0);
  comm->reduce(data, kCount, DType::f32, ReduceOp::sum, 0);
  comm->scatter(data, counts.data(), offsets.data(), second, kBytes, 0);
  comm->gather(data, kBytes, second, counts.data(), offsets.data(), 0);
  comm->all_to_all(data, second, kBytes);
  comm->barrier();
  comm->start_all_reduce(data, kCount, DType::f32, ReduceOp::sum).wait();
  comm->start_reduce_scatter(data, kCount, DType::f32, ReduceOp::sum).wait();
  comm->start_all_gather(data, kCount, DType::f32).wait();
  const int next = (me + 1) % ranks, last = (me + ranks - 1) % ranks;
  const std::array messages{Message{true, data, kBytes, next, 1},
                            Message{false, second, kBytes, last, 1}};
  comm->start_exchange(messages).wait();
  if (me == 0) comm->send(data, kBytes, 1, 5);
  if (me == 1) comm->receive(data, kBytes, 0, 5);

  const std::vector<CallRecord> records = records_of(*comm);
  using C = CommCall;
  const std::vector<std::pair<C, std::size_t>> wanted{{C::all_reduce, kBytes},
                                                      {C::reduce_scatter, n * kBytes},
                                                      {C::all_gather, n * kBytes},
                                                      {C::broadcast, kBytes},
                                                      {C::reduce, kBytes},
                                                      {C::scatter, kBytes},
                                                      {C::gather, kBytes},
                                                      {C::all_to_all, n * kBytes},
                                                      {C::barrier, 0},
                                                      {C::all_reduce, kBytes},
                                                      {C::reduce_scatter, n * kBytes},
                                                      {C::all_gather, n * kBytes},
                                                      {C::exchange, 2 * kBytes}};
  EXPECT_ALL_RANKS(records.size() == wanted.size() + (me < 2 ? 1 : 0)) << records.size();
  bool same = true, ended = true, in_order = true;
  for (std::size_t i = 0; i < std::min(records.size(), wanted.size()); ++i) {
    const CallRecord& r = records[i];
    same = same && r.call == wanted[i].first && r.bytes == wanted[i].second &&
           r.sequence == (is_collective(r.call) ? i + 1 : 1) && r.group == comm->id();
    ended = ended && r.state == CallState::done && r.end >= r.start && r.start > 0;
    in_order = in_order && (i == 0 || r.start >= records[i - 1].start);
  }
  EXPECT_ALL_RANKS(same);
  EXPECT_ALL_RANKS(ended);
  EXPECT_ALL_RANKS(in_order);
  EXPECT_ALL_RANKS(me > 1 || (records.back().peer == 1 - me && records.back().sequence == 2));
  EXPECT_ALL_RANKS(records.size() < 13 || records[12].peer == last);
}

TEST_P(FlightOfKind, AsynchronousCallsEndWhenTheyAreWaitedFor) {
  if (test::world_size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto comm = test::make_kind(GetParam());
  const test::Memory memory(*comm, 64);
  CommRequest& request = comm->start_all_reduce(memory.as<float>(), 4, DType::f32, ReduceOp::sum);
  const CallRecord begun = records_of(*comm).back();
  request.wait();
  const CallRecord ended = records_of(*comm).back();
  EXPECT_ALL_RANKS(begun.state == CallState::started && begun.end == 0);
  EXPECT_ALL_RANKS(ended.state == CallState::done && ended.end > ended.start);
  EXPECT_ALL_RANKS(ended.sequence == begun.sequence);
}

INSTANTIATE_TEST_SUITE_P(Kinds, FlightOfKind,
                         testing::Values("mpi", "mpi_tiny", "node", "node_outside"));

TEST(Flight, CommunicatorsHaveOneIdEach) {
  const int ranks = test::world_size();
  if (ranks == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto mesh = Mesh::over_world(Layout(1, 1, ranks, 1), Transport::automatic);
  const auto other = mesh->world().duplicate("other");
  std::vector<std::uint64_t> ids(static_cast<std::size_t>(ranks));
  for (Communicator* comm :
       {&mesh->world(), &mesh->node(), &mesh->along(Axis::data), other.get()}) {
    ids[static_cast<std::size_t>(mesh->rank())] = comm->id();
    mesh->world().all_gather(ids.data(), 1, DType::i64);
    EXPECT_ALL_RANKS(comm->id() != 0 && std::all_of(ids.begin(), ids.end(), [&](std::uint64_t id) {
                       return id == comm->id();
                     }));
  }
  const std::set<std::uint64_t> different{mesh->world().id(), mesh->node().id(),
                                          mesh->along(Axis::data).id(), other->id()};
  EXPECT_EQ(different.size(), 4u);
  EXPECT_EQ(mesh->along(Axis::tensor).id(), 0u) << "alone";
}

TEST(Flight, OtherRanksReadIt) {
  const int ranks = test::world_size();
  if (ranks == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto mesh = Mesh::over_world(Layout(1, 1, ranks, 1), Transport::automatic);
  Communicator& data = mesh->along(Axis::data);
  const auto memory = data.allocate(1024);
  HeartbeatBoard board(mesh->node(), mesh->rank());
  const int last = ranks - 1;
  board.publish(mesh->rank() == last ? "step 3: data" : "step 3: comm");
  if (mesh->rank() != last) data.start_all_reduce(memory->data(), 16, DType::f32, ReduceOp::sum);
  mesh->world().barrier();
  ASSERT_ALL_RANKS(data.size() ==
                   ranks);  // the barrier of all ranks has ended, in their records too
  const std::vector<RankFlight> flights = board.flights();
  ASSERT_ALL_RANKS(flights.size() == static_cast<std::size_t>(ranks));
  bool told = true;
  for (const RankFlight& f : flights) {
    const auto group = std::find_if(f.groups.begin(), f.groups.end(),
                                    [&](const GroupRecord& g) { return g.id == data.id(); });
    told = told && group != f.groups.end() && group->entered == (f.world_rank == last ? 0 : 1) &&
           group->size == ranks && f.alive > 0 && f.process > 0 &&
           f.phase == (f.world_rank == last ? "step 3: data" : "step 3: comm");
  }
  EXPECT_ALL_RANKS(told);
  // The records are changed to those of ranks that wait in the call.
  std::vector<RankFlight> waiting = flights;
  for (RankFlight& f : waiting)
    for (CallRecord& c : f.calls)
      if (c.group == data.id()) c.state = CallState::waiting;
  const std::string text = culprits(waiting, now_seconds());
  EXPECT_ALL_RANKS(text.starts_with("rank " + std::to_string(last) + " (process ") &&
                   text.find("has not entered all_reduce #1 of dp (64 bytes)") != text.npos)
      << text;
  EXPECT_ALL_RANKS(board.dead().empty()) << board.dead();
  mesh->world().barrier();
  if (mesh->rank() == last) data.start_all_reduce(memory->data(), 16, DType::f32, ReduceOp::sum);
  data.barrier();
}

TEST(Flight, RecordingAllocatesNothing) {
  if (test::world_size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto comm = test::make_kind("node");
  const test::Memory memory(*comm, 4096);
  const auto work = [&] {
    comm->all_reduce(memory.as<float>(), 64, DType::f32, ReduceOp::sum);
    comm->start_all_gather(memory.as<float>(), 4, DType::f32).wait();
  };
  work();
  const std::int64_t before = test::allocations();
  for (int i = 0; i < 100; ++i) work();
  EXPECT_ALL_RANKS(test::allocations() == before);
}

// Time inside is counted once, even if one communicator uses another one.
TEST(Flight, TimeInsideIsCountedOnce) {
  if (test::world_size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto comm = test::make_kind("node_outside");
  const test::Memory memory(*comm, 4096);
  const double from = now_seconds(), inside = seconds_in_communication();
  for (int i = 0; i < 50; ++i) comm->all_reduce(memory.as<float>(), 512, DType::f32, ReduceOp::sum);
  const double spent = seconds_in_communication() - inside, all = now_seconds() - from;
  EXPECT_ALL_RANKS(spent > 0 && spent <= all) << spent << " of " << all;
}

std::string words(const std::function<void()>& action) {
  try {
    action();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

void check(Communicator& comm, const char* name) {
  std::vector<int> ranks;
  for (int r = 0; r < comm.size(); ++r) ranks.push_back(r);
  comm.check_calls(std::make_unique<CallCheck>(comm.duplicate("check"), name, ranks));
}

TEST(CallCheck, NamesTheFirstThatDiffers) {
  const int ranks = test::world_size(), me = test::world_rank();
  if (ranks == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto comm = test::make_kind("mpi");
  check(*comm, "dp");
  std::vector<float> data(4096 * static_cast<std::size_t>(ranks));
  comm->all_reduce(data.data(), 4096, DType::f32, ReduceOp::sum);
  comm->broadcast(data.data(), 64, 0);
  const int last = ranks - 1;
  const std::string text = words([&] {
    if (me == last)
      comm->all_reduce(data.data(), 4096, DType::f32, ReduceOp::sum);
    else
      comm->all_gather(data.data(), 512, DType::f32);
  });
  const std::string wanted = "dp: ranks disagree on call 3: rank " + std::to_string(last) +
                             " calls all_reduce of 4096 f32 (sum) where rank 0 calls all_gather of "
                             "512 f32";
  EXPECT_ALL_RANKS(text.find(wanted) != text.npos) << text;
}

// Tests mismatched calls that would otherwise give wrong sums without an error, or hang.
TEST(CallCheck, SeesCountTypeOperationAndRoot) {
  const int ranks = test::world_size(), me = test::world_rank();
  if (ranks == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const bool odd = me == ranks - 1;
  std::vector<float> data(64);
  const std::vector<std::pair<std::function<void(Communicator&)>, const char*>> calls{
      {[&](Communicator& c) { c.all_reduce(data.data(), odd ? 3 : 4, DType::f32, ReduceOp::sum); },
       "all_reduce of 3 f32 (sum) where rank 0 calls all_reduce of 4 f32 (sum)"},
      {[&](Communicator& c) {
         c.start_all_reduce(data.data(), 4, odd ? DType::i32 : DType::f32, ReduceOp::sum).wait();
       },
       "all_reduce of 4 i32 (sum) where rank 0 calls all_reduce of 4 f32 (sum)"},
      {[&](Communicator& c) {
         c.all_reduce(data.data(), 4, DType::f32, odd ? ReduceOp::max : ReduceOp::sum);
       },
       "all_reduce of 4 f32 (max) where rank 0 calls all_reduce of 4 f32 (sum)"},
      {[&](Communicator& c) { c.broadcast(data.data(), 16, odd ? ranks - 1 : 0); },
       "broadcast of 16 bytes, root"},
  };
  for (const auto& [call, wanted] : calls) {
    const auto comm = test::make_kind("mpi");
    check(*comm, "tp");
    const std::string text = words([&comm, &call = call] { call(*comm); });
    EXPECT_ALL_RANKS(text.find(wanted) != text.npos) << text << "\nlacks " << wanted;
  }
}

TEST(CallCheck, CoversTheMesh) {
  const int ranks = test::world_size();
  if (ranks == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto mesh = Mesh::over_world(Layout(1, 1, ranks, 1), Transport::automatic);
  mesh->check_calls();
  std::vector<float> data(64);
  const bool odd = mesh->rank() == 1;
  mesh->world().barrier();
  const std::string text = words([&] {
    mesh->along(Axis::data).all_reduce(data.data(), odd ? 8 : 4, DType::f32, ReduceOp::sum);
  });
  EXPECT_ALL_RANKS(text.find("dp: ranks disagree on call 1: rank 1 calls") != text.npos) << text;
}

}  // namespace
}  // namespace choir
