#include <gtest/gtest.h>

#include <algorithm>

#include "test/mpi/comm/kinds.hpp"
#include "test/support/mpi_test.hpp"

namespace choir::test {
namespace {

class Collectives : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Communicator> comm = make_kind(GetParam());
  const int rank = comm->rank();
  const int size = comm->size();
  const std::size_t ranks = static_cast<std::size_t>(comm->size());

  int expected(std::size_t i, ReduceOp op) const {
    int result = number(0, i);
    for (int p = 1; p < size; ++p) {
      const int next = number(p, i);
      result = op == ReduceOp::sum   ? result + next
               : op == ReduceOp::max ? std::max(result, next)
                                     : std::min(result, next);
    }
    return result;
  }

  template <class T>
  void reductions(std::size_t count, std::size_t lead) {
    const DType dtype = DTypeOf<T>::value;
    const Memory memory(*comm, (count * ranks + lead) * sizeof(T));
    T* data = memory.as<T>() + lead;  // `lead` moves the block off the cache line
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
      for (std::size_t i = 0; i < count; ++i) data[i] = T(number(rank, i));
      comm->all_reduce(data, count, dtype, op);
      bool ok = true;
      for (std::size_t i = 0; i < count; ++i) ok &= float(data[i]) == float(expected(i, op));
      EXPECT_ALL_RANKS(ok) << "all_reduce of " << count << " " << name_of(dtype);
      comm->barrier();

      for (std::size_t i = 0; i < count * ranks; ++i) data[i] = T(number(rank, i));
      comm->reduce_scatter(data, count, dtype, op);
      ok = true;
      const std::size_t first = static_cast<std::size_t>(rank) * count;
      for (std::size_t i = first; i < first + count; ++i)
        ok &= float(data[i]) == float(expected(i, op));
      EXPECT_ALL_RANKS(ok) << "reduce_scatter of " << count << " " << name_of(dtype);

      const int root = size - 1;
      for (std::size_t i = 0; i < count; ++i) data[i] = T(number(rank, i));
      comm->reduce(data, count, dtype, op, root);
      ok = true;
      for (std::size_t i = 0; i < count && rank == root; ++i)
        ok &= float(data[i]) == float(expected(i, op));
      EXPECT_ALL_RANKS(ok) << "reduce of " << count << " " << name_of(dtype);
    }
  }
};

TEST_P(Collectives, Reductions) {
  for (const std::size_t count : {1u, 3u, 17u, 64u, 1001u}) {
    reductions<float>(count, 0);
    reductions<double>(count, 1);
    reductions<bf16>(count, 3);
    reductions<f16>(count, 3);
    reductions<std::int64_t>(count, 0);
    reductions<std::int32_t>(count, 5);
  }
  reductions<std::uint16_t>(33, 1);
  reductions<std::uint8_t>(33, 1);
}

TEST_P(Collectives, NothingIsFine) {
  const Memory memory(*comm, 64);
  comm->all_reduce(memory.as<float>(), 0, DType::f32, ReduceOp::sum);
  comm->reduce_scatter(memory.as<float>(), 0, DType::f32, ReduceOp::sum);
  comm->all_gather(memory.as<float>(), 0, DType::f32);
  comm->broadcast(memory.as<float>(), 0, 0);
  comm->barrier();
  EXPECT_ALL_RANKS(memory.as<float>()[0] == 0.0f);
}

// With tiny messages this would be a million messages.
class LargeCollectives : public Collectives {};

TEST_P(LargeCollectives, LargerThanTheCacheStreams) {
  reductions<float>((std::size_t{3} << 20) / 2 + 5, 1);
}

TEST_P(Collectives, AllGather) {
  for (const std::size_t count : {1u, 5u, 1003u}) {
    const Memory memory(*comm, count * ranks * sizeof(float));
    auto* data = memory.as<float>();
    std::fill_n(data, count * ranks, -1.0f);
    for (std::size_t i = 0; i < count; ++i)
      data[static_cast<std::size_t>(rank) * count + i] = static_cast<float>(number(rank, i));
    comm->all_gather(data, count, DType::f32);
    bool ok = true;
    for (std::size_t p = 0; p < ranks; ++p)
      for (std::size_t i = 0; i < count; ++i)
        ok &= data[p * count + i] == static_cast<float>(number(static_cast<int>(p), i));
    EXPECT_ALL_RANKS(ok) << count;
  }
}

TEST_P(Collectives, Broadcast) {
  for (int root = 0; root < size; ++root) {
    const Memory memory(*comm, 4001);
    auto* data = memory.as<std::uint8_t>();
    for (std::size_t i = 0; i < 4001; ++i)
      data[i] = rank == root ? static_cast<std::uint8_t>(number(root, i)) : 0;
    comm->broadcast(data, 4001, root);
    bool ok = true;
    for (std::size_t i = 0; i < 4001; ++i) ok &= data[i] == number(root, i);
    EXPECT_ALL_RANKS(ok) << "from " << root;
  }
}

// The part of rank p has 10 p + 3 bytes; parts are stored in reverse order with gaps.
TEST_P(Collectives, ScatterAndGatherUnequalPieces) {
  std::vector<std::int64_t> counts, offsets;
  for (int p = 0; p < size; ++p) {
    counts.push_back(10 * p + 3);
    offsets.push_back((size - 1 - p) * 64 + 1);
  }
  const auto mine = static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]);
  for (int root = 0; root < size; ++root) {
    std::vector<std::uint8_t> whole(ranks * 64, 255), piece(mine, 0);
    if (rank == root)
      for (std::size_t i = 0; i < whole.size(); ++i)
        whole[i] = static_cast<std::uint8_t>(number(1, i));
    comm->scatter(whole.data(), counts.data(), offsets.data(), piece.data(), mine, root);
    bool ok = true;
    const auto from = static_cast<std::size_t>(offsets[static_cast<std::size_t>(rank)]);
    for (std::size_t i = 0; i < mine; ++i) ok &= piece[i] == number(1, from + i);
    EXPECT_ALL_RANKS(ok) << "scatter from " << root;

    std::fill(whole.begin(), whole.end(), std::uint8_t{255});
    for (std::size_t i = 0; i < mine; ++i) piece[i] = static_cast<std::uint8_t>(number(rank, i));
    comm->gather(piece.data(), mine, whole.data(), counts.data(), offsets.data(), root);
    ok = true;
    std::vector<std::uint8_t> wanted(whole.size(), 255);
    for (int p = 0; p < size && rank == root; ++p)
      for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(p)]; ++i)
        wanted[static_cast<std::size_t>(offsets[static_cast<std::size_t>(p)] + i)] =
            static_cast<std::uint8_t>(number(p, static_cast<std::size_t>(i)));
    EXPECT_ALL_RANKS(whole == wanted) << "gather to " << root;
  }
}

TEST_P(Collectives, AllToAll) {
  for (const std::size_t bytes : {1u, 37u}) {
    std::vector<std::uint8_t> out(bytes * ranks), in(bytes * ranks);
    for (std::size_t p = 0; p < ranks; ++p)
      for (std::size_t i = 0; i < bytes; ++i)
        out[p * bytes + i] = static_cast<std::uint8_t>(number(rank, i) + 32 * static_cast<int>(p));
    comm->all_to_all(out.data(), in.data(), bytes);
    bool ok = true;
    for (std::size_t p = 0; p < ranks; ++p)
      for (std::size_t i = 0; i < bytes; ++i)
        ok &= in[p * bytes + i] == number(static_cast<int>(p), i) + 32 * rank;
    EXPECT_ALL_RANKS(ok);
  }
}

TEST_P(Collectives, SendAndReceiveAroundTheRing) {
  if (size == 1) GTEST_SKIP() << "needs 2 or more ranks";
  std::vector<std::uint8_t> out(1000), in(1000);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(number(rank, i));
  const int to = (rank + 1) % size, from = (rank + size - 1) % size;
  if (rank == 0) comm->send(out.data(), out.size(), to, 7);
  comm->receive(in.data(), in.size(), from, 7);
  if (rank != 0) comm->send(out.data(), out.size(), to, 7);
  bool ok = true;
  for (std::size_t i = 0; i < in.size(); ++i) ok &= in[i] == number(from, i);
  EXPECT_ALL_RANKS(ok);
}

TEST_P(Collectives, DuplicateIsAnIndependentSpace) {
  const auto second = comm->duplicate("second");
  EXPECT_EQ(second->name(), "second");
  EXPECT_STREQ(second->transport(), comm->transport());
  const Memory memory(*second, 256);
  auto* data = memory.as<float>();
  data[0] = static_cast<float>(rank + 1);
  second->all_reduce(data, 1, DType::f32, ReduceOp::sum);
  EXPECT_ALL_RANKS(data[0] == static_cast<float>(size * (size + 1) / 2));
}

TEST_P(Collectives, TrafficIsCounted) {
  const Memory memory(*comm, 4096 * ranks);
  auto* data = memory.as<float>();
  comm->reset_traffic();
  comm->all_reduce(data, 1000, DType::f32, ReduceOp::sum);                // 4000
  comm->all_gather(data, 10, DType::f64);                                 // 80 per rank
  comm->start_reduce_scatter(data, 5, DType::f32, ReduceOp::sum).wait();  // 20 per rank
  comm->broadcast(data, 3, 0);                                            // 3
  comm->barrier();
  EXPECT_EQ(comm->traffic().calls, 5);
  EXPECT_EQ(comm->traffic().bytes, 4003.0 + 100.0 * size);
  EXPECT_GT(comm->traffic().seconds, 0.0);
  EXPECT_LT(comm->traffic().seconds, 60.0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Collectives,
                         testing::Values("mpi", "mpi_tiny", "node", "node_outside", "two_level",
                                         "two_level_uneven", "two_level_tiny"),
                         [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(Kinds, LargeCollectives,
                         testing::Values("mpi", "node", "node_outside", "two_level",
                                         "two_level_uneven"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace choir::test
