#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"
#include "test/mpi/comm/kinds.hpp"
#include "test/support/measured.hpp"
#include "test/support/mpi_test.hpp"

namespace choir::test {
namespace {

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::unique_ptr<Communicator> impatient(double timeout) {
  NodeOptions options;
  options.timeout_seconds = timeout;
  return make_node_communicator(MPI_COMM_WORLD, "dp", options);
}

TEST(Node, BlocksAreZeroedAlignedAndSeenByAll) {
  const auto comm = make_kind("node");
  const auto buffer = comm->allocate(1000);
  EXPECT_TRUE(buffer->shared());
  EXPECT_EQ(buffer->bytes(), 1000u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0u);
  auto* mine = static_cast<std::uint8_t*>(buffer->data());
  bool ok = true;
  for (std::size_t i = 0; i < 1000; ++i) ok &= mine[i] == 0;
  mine[999] = static_cast<std::uint8_t>(comm->rank() + 1);
  comm->barrier();
  for (int p = 0; p < comm->size(); ++p)
    ok &= static_cast<const std::uint8_t*>(buffer->block(p))[999] == p + 1;
  comm->barrier();
  EXPECT_ALL_RANKS(ok);
}

TEST(Node, PartsOfSeveralWindows) {
  const auto comm = make_kind("node");
  auto first = comm->allocate(4096);
  const auto second = comm->allocate(4096);
  first.reset();  // the numbers of the others stay
  const auto third = comm->allocate(4096);
  auto* a = static_cast<float*>(second->data()) + 17;
  auto* b = static_cast<float*>(third->data()) + 1;
  a[0] = 1.0f;
  b[0] = 2.0f;
  comm->all_reduce(a, 1, DType::f32, ReduceOp::sum);
  comm->all_reduce(b, 1, DType::f32, ReduceOp::sum);
  EXPECT_ALL_RANKS(a[0] == static_cast<float>(comm->size()) &&
                   b[0] == 2.0f * static_cast<float>(comm->size()));
}

// The last rank is too late: all others report that it is missing, and the operation; the last one
// finds that the others have ended. No rank hangs, not even in the destructors.
TEST(Node, AMissingRankIsNamed) {
  if (world_size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const int late = world_size() - 1;
  std::string text;
  double waited = 0;
  {
    const auto comm = impatient(0.3);
    const auto buffer = comm->allocate(4096);
    if (comm->rank() == late) sleep_seconds(1.5);
    const double from = now_seconds();
    try {
      comm->all_reduce(buffer->data(), 1024, DType::f32, ReduceOp::sum);
    } catch (const CommError& error) {
      text = error.what();
    }
    waited = now_seconds() - from;
    EXPECT_THROW(comm->barrier(), CommError) << "broken for good";
  }
  const bool named = text.find("dp") != std::string::npos &&
                     text.find("all_reduce of 1024 f32") != std::string::npos &&
                     (world_rank() == late ||
                      text.find("for rank " + std::to_string(late) + ", which has not arrived") !=
                          std::string::npos);
  EXPECT_ALL_RANKS(named) << text;
  if (world_rank() == 0) print_measured("a rank that does not come", waited, "s", "below", 30);
  EXPECT_ALL_RANKS(waited >= 0.2 && waited < 30) << waited;
}

TEST(Node, SlowRanksWithinTheTimeAreFine) {
  const auto comm = impatient(20);
  const auto buffer = comm->allocate(64);
  auto* data = static_cast<float*>(buffer->data());
  data[0] = 1;
  if (comm->rank() == 0) sleep_seconds(0.3);
  comm->all_reduce(data, 1, DType::f32, ReduceOp::sum);
  EXPECT_ALL_RANKS(data[0] == static_cast<float>(comm->size()));
}

TEST(Node, DifferentCallsAreDetected) {
  if (world_size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto comm = impatient(20);
  const auto buffer = comm->allocate(4096);
  const std::size_t count = comm->rank() == 0 ? 100 : 101;
  std::string text;
  try {
    comm->all_reduce(buffer->data(), count, DType::f32, ReduceOp::sum);
  } catch (const CommError& error) {
    text = error.what();
  }
  EXPECT_ALL_RANKS(text.find("all_reduce of 100 f32") != std::string::npos &&
                   text.find("all_reduce of 101 f32") != std::string::npos)
      << text;
}

TEST(Node, TooLittleSharedMemoryIsRefusedByEveryRank) {
  const auto comm = make_kind("node");
  std::string text;
  try {
    const auto buffer = comm->allocate(std::size_t{1} << 46);
  } catch (const CommError& error) {
    text = error.what();
  }
  // A communicator of one rank has memory of its own.
  const char* const what = comm->size() > 1 ? "/dev/shm" : "communication buffer of 64.0 TiB";
  EXPECT_ALL_RANKS(text.find(what) != std::string::npos) << text;
  comm->barrier();  // still usable
}

/// True if a sum over a buffer, blocking and not, has the value of `ranks` ones.
bool sums_right(Communicator& comm, const CommBuffer& buffer) {
  auto* const values = static_cast<float*>(buffer.data());
  const std::size_t count = buffer.bytes() / sizeof(float);
  bool right = true;
  for (const bool waits : {false, true}) {
    std::fill_n(values, count, 1.0f);
    if (waits)
      comm.start_all_reduce(values, count, DType::f32, ReduceOp::sum, Summation::fast).wait();
    else
      comm.all_reduce(values, count, DType::f32, ReduceOp::sum);
    right &= std::count(values, values + count, static_cast<float>(comm.size())) ==
             static_cast<std::ptrdiff_t>(count);
  }
  return right;
}

// A node whose shared memory is small is imitated by a limit; on several nodes only one has it.
TEST(Node, BuffersThatDoNotFitUseMpi) {
  const auto world = make_mpi_communicator(MPI_COMM_WORLD, "world");
  if (world_size() == 1) GTEST_SKIP() << "one rank shares nothing";
  for (const bool several : {false, true}) {
    NodeOptions options;
    options.timeout_seconds = 60;
    options.shortage = std::make_shared<WindowShortage>();
    const bool small = !several || world_rank() / 2 == 0;
    if (small) options.shortage->largest = 65536;
    const auto comm =
        several ? make_two_level_communicator(MPI_COMM_WORLD, "dp", world_rank() / 2, options)
                : make_node_communicator(MPI_COMM_WORLD, "dp", options);
    if (shortage_of(*comm) == nullptr) continue;  // two ranks are one node
    const auto before = comm->allocate(4096);
    const auto large = comm->allocate(1 << 20);
    const auto after = comm->allocate(4096);
    EXPECT_ALL_RANKS(before->shared() && !large->shared() && after->shared());
    EXPECT_EQ(options.shortage->bytes.load(), 1 << 20);
    EXPECT_EQ(options.shortage->room.load() > 0, small);
    EXPECT_ALL_RANKS(sums_right(*comm, *before));
    EXPECT_ALL_RANKS(sums_right(*comm, *large));
    EXPECT_ALL_RANKS(sums_right(*comm, *after));
    const std::string note = shortage_note(*world, *comm);
    EXPECT_ALL_RANKS(note.find("64.0 KiB free") != std::string::npos &&
                     note.find("parallel.transport=mpi") != std::string::npos)
        << note;
    const auto copy = comm->duplicate("copy");  // has the same record
    EXPECT_EQ(shortage_of(*copy), options.shortage);
  }
}

TEST(Node, BuffersThatFitNeedNoNote) {
  const auto world = make_mpi_communicator(MPI_COMM_WORLD, "world");
  const auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  const auto buffer = mesh->node().allocate(4096);
  EXPECT_EQ(shortage_note(*world, mesh->node()), "");
}

// Every rank throws an exception between collectives: destructors run during unwinding and must not
// wait.
TEST(Node, UnwindingDoesNotHang) {
  EXPECT_THROW(
      {
        const auto comm = make_kind("node");
        const auto buffer = comm->allocate(4096);
        if (comm->rank() == 0) sleep_seconds(0.1);
        throw DataError("a file is missing");
      },
      DataError);
  EXPECT_ALL_RANKS(true);
}

}  // namespace
}  // namespace choir::test
