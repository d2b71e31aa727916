// Tests of messages that are posted together: between neighbours that send to each other at the
// same time, in any partition, waited for in any order.
#include <gtest/gtest.h>

#include <array>

#include "choir/core/error.hpp"
#include "test/mpi/comm/kinds.hpp"
#include "test/support/count_allocations.hpp"
#include "test/support/mpi_test.hpp"

namespace choir::test {
namespace {

class ExchangeOf : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Communicator> comm = make_kind(GetParam());
  const int rank = comm->rank();
  const int size = comm->size();
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;

  static void fill(std::int32_t* data, std::size_t count, int from, int tag) {
    for (std::size_t i = 0; i < count; ++i) data[i] = number(from, i) + 1000 * tag + 100000 * from;
  }
  static bool holds(const std::int32_t* data, std::size_t count, int from, int tag) {
    bool ok = true;
    for (std::size_t i = 0; i < count; ++i)
      ok &= data[i] == number(from, i) + 1000 * tag + 100000 * from;
    return ok;
  }
  template <class F>
  static std::string error_text(const F& f) {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  static Message sends(std::int32_t* data, std::size_t count, int to, int tag) {
    return {true, data, count * sizeof(std::int32_t), to, tag};
  }
  static Message receives(std::int32_t* data, std::size_t count, int from, int tag) {
    return {false, data, count * sizeof(std::int32_t), from, tag};
  }
};

// Messages in both directions around the ring at once, far larger than those that MPI sends without
// a receiver.
TEST_P(ExchangeOf, BothNeighboursAtOnce) {
  if (size == 1) GTEST_SKIP() << "needs 2 or more ranks";
  constexpr std::size_t kCount = 50001;
  const std::size_t count = GetParam() == "mpi_tiny" ? 501 : kCount;
  const Memory memory(*comm, 4 * kCount * sizeof(std::int32_t));
  auto* data = memory.as<std::int32_t>();
  fill(data, count, rank, 1);
  fill(data + kCount, count, rank, 2);
  const std::array messages{sends(data, count, next, 1), sends(data + kCount, count, before, 2),
                            receives(data + 2 * kCount, count, before, 1),
                            receives(data + 3 * kCount, count, next, 2)};
  comm->reset_traffic();
  comm->start_exchange(messages).wait();
  EXPECT_EQ(comm->traffic().calls, 1);
  EXPECT_EQ(comm->traffic().bytes, static_cast<double>(4 * count * sizeof(std::int32_t)));
  EXPECT_GE(comm->traffic().seconds, 0);
  EXPECT_ALL_RANKS(holds(data + 2 * kCount, count, before, 1));
  EXPECT_ALL_RANKS(holds(data + 3 * kCount, count, next, 2));
}

// Rank 0 sends four messages in one exchange; rank 1 receives them in four, and waits for the last
// first. A computation in between polls them.
TEST_P(ExchangeOf, PartsNeedNotBeAlike) {
  if (size == 1) GTEST_SKIP() << "needs 2 or more ranks";
  constexpr std::size_t kParts = 4, kCount = 20000;
  const std::size_t count = GetParam() == "mpi_tiny" ? 101 : kCount;
  const Memory memory(*comm, kParts * kCount * sizeof(std::int32_t));
  auto* data = memory.as<std::int32_t>();
  const auto tag = [](std::size_t k) { return static_cast<int>(k / 2); };  // two equal ones
  std::array<Message, kParts> messages;
  std::array<ExchangeRequest*, kParts> requests{};
  for (std::size_t k = 0; k < kParts; ++k) {
    std::int32_t* part = data + k * kCount;
    if (rank == 0) fill(part, count, static_cast<int>(k), tag(k));
    messages[k] = rank == 0 ? sends(part, count, 1, tag(k)) : receives(part, count, 0, tag(k));
  }
  bool ok = true;
  if (rank == 0) comm->start_exchange(messages).wait();
  if (rank == 1) {
    for (std::size_t k = 0; k < kParts; ++k) requests[k] = &comm->start_exchange({&messages[k], 1});
    for (std::size_t k = kParts; k-- > 0;) {
      requests[k]->test();
      requests[k]->wait_received();
      ok &= holds(data + k * kCount, count, static_cast<int>(k), tag(k));
      ok &= requests[k]->test();
    }
    for (ExchangeRequest* request : requests) request->wait();
  }
  EXPECT_ALL_RANKS(ok);
}

// A receive completes although the peer has not yet taken the message of this rank.
TEST_P(ExchangeOf, ReceivedBeforeSent) {
  if (size == 1) GTEST_SKIP() << "needs 2 or more ranks";
  constexpr std::size_t kCount = 50000;
  const std::size_t count = GetParam() == "mpi_tiny" ? 301 : kCount;
  std::vector<std::int32_t> out(count), in(count);
  fill(out.data(), count, rank, 5);
  const Message send = sends(out.data(), count, 1 - rank, 5);
  const Message receive = receives(in.data(), count, 1 - rank, 5);
  if (rank == 0) {
    const std::array both{send, receive};
    ExchangeRequest& request = comm->start_exchange(both);
    request.wait_received();
    EXPECT_TRUE(holds(in.data(), count, 1, 5));
    comm->send(&in[0], 4, 1, 9);  // only now rank 1 receives the message
    request.wait();
  }
  if (rank == 1) {
    std::int32_t word = 0;
    ExchangeRequest& request = comm->start_exchange({&send, 1});
    comm->receive(&word, 4, 0, 9);
    comm->start_exchange({&receive, 1}).wait();
    request.wait();
  }
  EXPECT_ALL_RANKS(rank != 1 || holds(in.data(), count, 0, 5));
}

TEST_P(ExchangeOf, MistakesAreRefused) {
  std::vector<std::int32_t> data(8);
  const auto refused = [&](const std::vector<Message>& messages) {
    return !error_text([&] { comm->start_exchange(messages).wait(); }).empty();
  };
  EXPECT_TRUE(refused({sends(data.data(), 1, rank, 0)})) << "itself";
  EXPECT_TRUE(refused({sends(data.data(), 1, size, 0)}));
  EXPECT_TRUE(refused({sends(data.data(), 1, next, -1)}));
  EXPECT_TRUE(refused({sends(data.data(), 1, next, 30000)}));
  ExchangeRequest& empty = comm->start_exchange({});
  EXPECT_TRUE(empty.test());
  empty.wait();
  EXPECT_THROW(empty.wait(), Error);
  EXPECT_THROW(empty.wait_received(), Error);
  std::vector<ExchangeRequest*> requests;
  for (int k = 0; k < Communicator::kMaxInFlight; ++k)
    requests.push_back(&comm->start_exchange({}));
  EXPECT_THROW(comm->start_exchange({}), Error);
  for (ExchangeRequest* request : requests) request->wait();
}

// Tiny messages are sent in chunks of 16 bytes, and an error names the size of a chunk.
class WholeMessages : public ExchangeOf {};

TEST_P(WholeMessages, OtherSizesAreFound) {
  if (size == 1) GTEST_SKIP() << "needs 2 or more ranks";
  std::vector<std::int32_t> data(64);
  std::string words;
  if (rank == 0) {
    const Message message = sends(data.data(), 5, 1, 3);
    comm->start_exchange({&message, 1}).wait();
  }
  if (rank == 1) {
    const Message message = receives(data.data(), 9, 0, 3);
    words = error_text([&] { comm->start_exchange({&message, 1}).wait(); });
  }
  EXPECT_ALL_RANKS(rank != 1 || words.find("20 bytes from rank 0, 36 expected") != words.npos)
      << words;
}

TEST_P(ExchangeOf, NothingIsAllocatedOnceWarm) {
  if (size == 1) GTEST_SKIP() << "needs 2 or more ranks";
  std::vector<std::int32_t> out(3000), in(3000);
  const std::array messages{sends(out.data(), out.size(), next, 1),
                            receives(in.data(), in.size(), before, 1)};
  const auto round = [&] {
    ExchangeRequest& request = comm->start_exchange(messages);
    request.test();
    request.wait_received();
    request.wait();
  };
  round();
  const std::int64_t from = allocations();
  round();
  const std::int64_t to = allocations();
  EXPECT_ALL_RANKS(from == to) << to - from << " allocations";
}

INSTANTIATE_TEST_SUITE_P(Kinds, ExchangeOf,
                         testing::Values("mpi", "mpi_tiny", "node", "node_outside"),
                         [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(Kinds, WholeMessages, testing::Values("mpi", "node", "node_outside"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace choir::test
