#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"
#include "test/mpi/comm/kinds.hpp"
#include "test/support/measured.hpp"
#include "test/support/mpi_test.hpp"

namespace choir::test {
namespace {

thread_local const std::vector<int>* node_of_rank = nullptr;  // while bytes are counted
thread_local double sent_elsewhere = 0;
thread_local int messages_sent = 0;

/// Counts the bytes that this rank sends to ranks of other nodes, as long as this object exists.
class CountSent {
 public:
  explicit CountSent(const std::vector<int>& nodes) {
    node_of_rank = &nodes;
    sent_elsewhere = 0;
    messages_sent = 0;
  }
  ~CountSent() { node_of_rank = nullptr; }
  CountSent(const CountSent&) = delete;
  CountSent& operator=(const CountSent&) = delete;
};

double of_node(double value, int node) {
  MPI_Comm neighbours = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, node, 0, &neighbours);
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_SUM, neighbours);
  MPI_Comm_free(&neighbours);
  return value;
}

// Each node sends 2 (n-1)/n of the bytes of an all-reduce, and half of that for the other two
// collectives. Sums of 16 bits are sent as f32 until they are complete.
TEST(TwoLevel, NodesSendWhatTheyMustAndNoMore) {
  if (world_size() != 4) GTEST_SKIP() << "needs 4 ranks";
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 1, 1}, {0, 1, 2, 3}, {0, 1, 0, 1}}) {
    const int node = nodes[static_cast<std::size_t>(world_rank())];
    const double count = 1 << 20, n = *std::max_element(nodes.begin(), nodes.end()) + 1;
    const auto comm = make_two_level_communicator(MPI_COMM_WORLD, "dp", node);
    const auto buffer = comm->allocate(static_cast<std::size_t>(count) * sizeof(float));
    const auto all = static_cast<std::size_t>(count), share = all / 4;
    // Every rank has a lane with a quarter of each chunk, and one message of it in each of log2(n)
    // rounds there, and as many back.
    const double in_piece = 4.0 * static_cast<double>(NodeOptions{}.link_message_bytes);
    const auto expect = [&](double factor, int ways, double elements, const char* what) {
      const double sent = of_node(sent_elsewhere, node);
      EXPECT_ALL_RANKS(std::abs(sent / (factor * (n - 1) / n * count * sizeof(float)) - 1) < 1e-3)
          << what << " over " << n << " nodes: " << sent;
      EXPECT_ALL_RANKS(messages_sent <=
                       ways * std::log2(n) * std::ceil(elements * sizeof(float) / in_piece))
          << what << ": " << messages_sent;
    };
    {
      const CountSent counted(nodes);
      comm->all_reduce(buffer->data(), all, DType::f32, ReduceOp::sum);
      expect(2, 2, count, "all_reduce");
    }
    {
      const CountSent counted(nodes);
      comm->reduce_scatter(buffer->data(), share, DType::f32, ReduceOp::sum);
      expect(1, 1, count, "reduce_scatter");
    }
    {
      const CountSent counted(nodes);
      comm->all_gather(buffer->data(), share, DType::f32);
      expect(1, 1, count, "all_gather");
    }
    if (nodes[1] != 0 && n == 2) continue;  // interleaved: through MPI, to keep the order
    {
      const CountSent counted(nodes);
      comm->all_reduce(buffer->data(), 2 * all, DType::bf16, ReduceOp::sum);
      expect(3, 2, 2 * count, "all_reduce of bf16");
    }
    {
      const CountSent counted(nodes);
      comm->reduce_scatter(buffer->data(), 2 * share, DType::bf16, ReduceOp::sum);
      expect(2, 1, 2 * count, "reduce_scatter of bf16");
    }
  }
}

TEST(TwoLevel, BlocksAreThoseOfTheNode) {
  const auto comm = make_kind("two_level");
  const auto buffer = comm->allocate(256);
  *static_cast<int*>(buffer->data()) = world_rank();
  comm->barrier();
  bool ok = true;
  for (int p = 0; p < world_size(); ++p) {
    const auto* block = static_cast<const int*>(buffer->block(p));
    ok &= p / 2 == world_rank() / 2 ? block != nullptr && *block == p : block == nullptr;
  }
  comm->barrier();
  EXPECT_ALL_RANKS(ok);
}

// No rank leaves a barrier before the last one on any node has arrived.
TEST(TwoLevel, BarrierWaitsForOtherNodes) {
  for (const char* kind : {"two_level", "two_level_uneven", "two_level_tiny"}) {
    const auto comm = make_kind(kind);
    for (int late = 0; late < world_size(); ++late) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double from = MPI_Wtime();
      if (world_rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(60));
      comm->barrier();
      EXPECT_ALL_RANKS(MPI_Wtime() - from > 0.04) << kind;
    }
  }
}

// A node is too late: its neighbours and all other nodes name the missing one, and no rank hangs,
// not even in destructors. The time-out is that of the mesh.
TEST(TwoLevel, AMissingNodeIsNamed) {
  if (world_size() < 3) GTEST_SKIP() << "needs 3 or more ranks";
  const int late = world_size() - 1;
  std::string text;
  double waited = 0;
  {
    const auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1),
                                       {.ranks_per_node = 2, .timeout_seconds = 0.5});
    Communicator& comm = mesh->along(Axis::data);
    const auto buffer = comm.allocate(1 << 20);
    if (world_rank() / 2 == late / 2) std::this_thread::sleep_for(std::chrono::seconds(3));
    const double from = now_seconds();
    try {
      comm.all_reduce(buffer->data(), 1 << 18, DType::f32, ReduceOp::sum);
    } catch (const CommError& error) {
      text = error.what();
    }
    waited = now_seconds() - from;
    EXPECT_ALL_RANKS(text.find("all_reduce of 262144 f32") != std::string::npos) << text;
    const bool punctual = world_rank() / 2 != late / 2;
    EXPECT_ALL_RANKS(!punctual || text.find("for messages from or to rank") != std::string::npos)
        << text;
    EXPECT_THROW(comm.barrier(), CommError) << "broken for good";
    if (world_rank() == 0) print_measured("a rank that does not come", waited, "s", "below", 30);
    EXPECT_ALL_RANKS(waited < 30) << waited;
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

// Rank 0 waits in a window for rank 1, which waits for a message that rank 0 has not finished
// sending: waiting must advance it. (If one rank copies from the other's memory, nothing needs to
// be advanced.)
TEST(Node, WaitingInAWindowMovesMessages) {
  if (world_size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  NodeOptions options;
  options.timeout_seconds = 20;
  const auto node = make_node_communicator(MPI_COMM_WORLD, "tp", options);
  const auto mpi = make_mpi_communicator(MPI_COMM_WORLD, "pp");
  std::vector<std::byte> data(std::size_t{8} << 20);
  if (world_rank() == 0) {
    const Message out{.send = true, .data = data.data(), .bytes = data.size(), .peer = 1, .tag = 0};
    ExchangeRequest& request = mpi->start_exchange({&out, 1});
    node->barrier();
    request.wait();
  } else {
    if (world_rank() == 1) mpi->receive(data.data(), data.size(), 0, 0);
    node->barrier();
  }
  EXPECT_ALL_RANKS(true);
}

/// The free space in /dev/shm if it is small enough to be filled; otherwise 0.
std::size_t small_shared_memory() {
  struct statvfs room {};
  if (statvfs("/dev/shm", &room) != 0) return 0;
  const std::size_t bytes = room.f_bavail * room.f_frsize;
  return bytes < (std::size_t{128} << 20) ? bytes : 0;
}

// Groups that allocate windows at the same time do not use more than there is.
TEST(Node, GroupsDoNotTakeMoreTogetherThanThereIs) {
  if (world_size() != 4) GTEST_SKIP() << "needs 4 ranks";
  const auto world = make_mpi_communicator(MPI_COMM_WORLD, "world");
  const std::size_t room = small_shared_memory();
  std::int32_t small = room > 0 ? 1 : 0;
  world->all_reduce(&small, 1, DType::i32, ReduceOp::min);
  if (small == 0) GTEST_SKIP() << "needs a /dev/shm with less than 128 MiB of room";
  MPI_Comm pair = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank() / 2, world_rank(), &pair);
  {
    const auto node = make_node_communicator(pair, "pair");
    std::int32_t refused = 0;
    try {
      const auto buffer = node->allocate(room * 3 / 10);  // 6 / 10 of it for each of two pairs
      world->barrier();
    } catch (const CommError& error) {
      refused = std::string(error.what()).find("/dev/shm") != std::string::npos;
      world->barrier();
    }
    world->all_reduce(&refused, 1, DType::i32, ReduceOp::sum);
    EXPECT_ALL_RANKS(refused == 2) << refused << " ranks were refused";
  }
  MPI_Comm_free(&pair);
}

}  // namespace
}  // namespace choir::test

// This function is between the program and the library: it counts the bytes of each send.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  using namespace choir::test;
  if (node_of_rank != nullptr) {
    const auto node = [](int rank) { return (*node_of_rank)[static_cast<std::size_t>(rank)]; };
    ++messages_sent;
    if (node(to) != node(world_rank())) sent_elsewhere += count;
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
