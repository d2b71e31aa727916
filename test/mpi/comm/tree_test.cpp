#include <gtest/gtest.h>

#include "test/mpi/comm/kinds.hpp"
#include "test/mpi/comm/wild.hpp"
#include "test/support/mpi_test.hpp"

namespace choir::test {
namespace {

// The tree level by level: neighbours are added, and an odd one moves up. This is the reference for
// the recursion in the code.
template <class T>
T serial_tree(std::vector<T> level) {
  while (level.size() > 1) {
    std::vector<T> above;
    for (std::size_t i = 0; i < level.size(); i += 2)
      above.push_back(i + 1 < level.size() ? static_cast<T>(level[i] + level[i + 1]) : level[i]);
    level = std::move(above);
  }
  return level[0];
}

class Tree : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Communicator> comm = make_kind(GetParam());
  const int rank = comm->rank();
  const int size = comm->size();
  const std::size_t ranks = static_cast<std::size_t>(comm->size());

  template <class T>
  T oracle(std::size_t i) const {
    std::vector<T> leaves;
    for (int p = 0; p < size; ++p) leaves.push_back(wild<T>(p, i));
    return serial_tree(leaves);
  }

  /// True if the 16-bit sums from `first` on are right.
  template <class T>
  bool rounded_once(const T* data, std::size_t first, std::size_t count) const {
    bool ok = true;
    for (std::size_t i = first; i < first + count; ++i) {
      std::vector<float> leaves;
      for (int p = 0; p < size; ++p) leaves.push_back(static_cast<float>(T(wild<float>(p, i))));
      ok &= data[i].bits == T(serial_tree(leaves)).bits;
    }
    return ok;
  }
  template <class T>
  void compare_narrow(std::size_t count) {
    const DType dtype = DTypeOf<T>::value;
    const Memory memory(*comm, count * ranks * sizeof(T));
    T* data = memory.as<T>();
    const auto fill = [&](std::size_t n) {
      for (std::size_t i = 0; i < n; ++i) data[i] = T(wild<float>(rank, i));
    };
    fill(count);
    comm->all_reduce(data, count, dtype, ReduceOp::sum);
    EXPECT_ALL_RANKS(rounded_once(data, 0, count)) << "all_reduce of " << count;
    comm->barrier();
    fill(count * ranks);
    comm->start_reduce_scatter(data, count, dtype, ReduceOp::sum, Summation::fast).wait();
    EXPECT_ALL_RANKS(rounded_once(data, static_cast<std::size_t>(rank) * count, count))
        << "reduce_scatter of " << count;
    comm->barrier();
  }

  template <class T>
  void compare(std::size_t count) {
    const DType dtype = DTypeOf<T>::value;
    const Memory memory(*comm, count * ranks * sizeof(T));
    T* data = memory.as<T>();
    const auto fill = [&](std::size_t n) {
      for (std::size_t i = 0; i < n; ++i) data[i] = wild<T>(rank, i);
    };
    for (const bool asynchronous : {false, true}) {
      fill(count);
      if (asynchronous)
        comm->start_all_reduce(data, count, dtype, ReduceOp::sum, Summation::tree).wait();
      else
        comm->all_reduce(data, count, dtype, ReduceOp::sum, Summation::tree);
      bool ok = true;
      for (std::size_t i = 0; i < count; ++i) ok &= data[i] == oracle<T>(i);
      EXPECT_ALL_RANKS(ok) << "all_reduce of " << count;
      comm->barrier();

      fill(count * ranks);
      if (asynchronous)
        comm->start_reduce_scatter(data, count, dtype, ReduceOp::sum, Summation::tree).wait();
      else
        comm->reduce_scatter(data, count, dtype, ReduceOp::sum, Summation::tree);
      ok = true;
      const std::size_t first = static_cast<std::size_t>(rank) * count;
      for (std::size_t i = first; i < first + count; ++i) ok &= data[i] == oracle<T>(i);
      EXPECT_ALL_RANKS(ok) << "reduce_scatter of " << count;
      comm->barrier();
    }
  }
};

TEST_P(Tree, BitsOfTheSerialTree) {
  for (const std::size_t count : {1u, 7u, 130u, 5003u}) {
    compare<float>(count);
    compare<double>(count);
  }
}

// 8 micro-batches are added in a tree inside the ranks and then across them: the bits are those of
// one rank's tree.
TEST_P(Tree, ContinuesTheTreeInsideTheRanks) {
  if (size == 3) GTEST_SKIP() << "needs 2^n ranks";
  constexpr std::size_t kCount = 999;
  const int each = 8 / size;
  const Memory memory(*comm, kCount * sizeof(float));
  auto* data = memory.as<float>();
  for (std::size_t i = 0; i < kCount; ++i) {
    std::vector<float> mine;
    for (int k = 0; k < each; ++k) mine.push_back(wild<float>(rank * each + k, i));
    data[i] = serial_tree(mine);
  }
  comm->all_reduce(data, kCount, DType::f32, ReduceOp::sum, Summation::tree);
  bool ok = true, order_matters = false;
  for (std::size_t i = 0; i < kCount; ++i) {
    std::vector<float> all;
    float left_to_right = 0;
    for (int k = 0; k < 8; ++k) {
      all.push_back(wild<float>(k, i));
      left_to_right += all.back();
    }
    ok &= data[i] == serial_tree(all);
    order_matters |= left_to_right != data[i];
  }
  EXPECT_ALL_RANKS(ok);
  EXPECT_TRUE(order_matters) << "the numbers are too tame to test anything";
}

// 16-bit numbers are added in float and rounded once, on any path.
TEST_P(Tree, NumbersOf16BitsAreRoundedOnce) {
  for (const std::size_t count : {1u, 501u}) compare_narrow<bf16>(count);
  compare_narrow<f16>(501);
  if (GetParam() == "two_level") compare_narrow<bf16>(300001);  // in several chunks
}

INSTANTIATE_TEST_SUITE_P(Kinds, Tree,
                         testing::Values("mpi", "mpi_tiny", "node", "node_outside", "two_level",
                                         "two_level_uneven", "two_level_tiny"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace choir::test
