// Tests of collectives on device memory: every call, every type, and sizes around those of chunks
// are compared with exact numbers, and bit for bit with the host communicator that stages them.
#include "test/mpi/comm/kinds.hpp"
#include "test/mpi/comm/wild.hpp"
#include "test/mpi_cuda/device_kinds.hpp"

namespace choir::test {
namespace {

class DeviceCollectives : public DeviceKinds {
 protected:
  template <class T>
  std::vector<T> numbers(int of_rank, std::size_t count) const {
    std::vector<T> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = exact<T>(number(of_rank, i));
    return values;
  }
  /// Small integers are exact in every type.
  template <class T>
  static T exact(int value) {
    if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
      return T(static_cast<float>(value));
    else
      return static_cast<T>(value);
  }
  int expected(std::size_t i, ReduceOp op) const {
    int result = number(0, i);
    for (int p = 1; p < size(); ++p) {
      const int more = number(p, i);
      result = op == ReduceOp::sum   ? result + more
               : op == ReduceOp::max ? std::max(result, more)
                                     : std::min(result, more);
    }
    return result;
  }
  template <class T>
  static bool same(const T& a, const T& b) {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
  }

  template <class T>
  void reductions(std::size_t count) {
    const DType dtype = DTypeOf<T>::value;
    OnDevice<T> memory(device(), comm(), count * ranks());
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
      memory.write(numbers<T>(rank(), count));
      comm().all_reduce(memory.data(), count, dtype, op);
      std::vector<T> got = memory.read();
      bool ok = true;
      for (std::size_t i = 0; i < count; ++i) ok &= same(got[i], exact<T>(expected(i, op)));
      EXPECT_ALL_RANKS(ok) << "all_reduce of " << count << " " << name_of(dtype);

      memory.write(numbers<T>(rank(), count * ranks()));
      comm().reduce_scatter(memory.data(), count, dtype, op);
      got = memory.read();
      ok = true;
      const std::size_t first = static_cast<std::size_t>(rank()) * count;
      for (std::size_t i = first; i < first + count; ++i)
        ok &= same(got[i], exact<T>(expected(i, op)));
      EXPECT_ALL_RANKS(ok) << "reduce_scatter of " << count << " " << name_of(dtype);
    }
    const int root = size() - 1;
    memory.write(numbers<T>(rank(), count));
    comm().reduce(memory.data(), count, dtype, ReduceOp::sum, root);
    const std::vector<T> got = memory.read();
    bool ok = true;
    for (std::size_t i = 0; i < count && rank() == root; ++i)
      ok &= same(got[i], exact<T>(expected(i, ReduceOp::sum)));
    EXPECT_ALL_RANKS(ok) << "reduce of " << count << " " << name_of(dtype);
  }
};

TEST_P(DeviceCollectives, ReductionsOfEveryType) {
  for (const std::size_t count : {0u, 1u, 17u, 1001u}) {
    reductions<float>(count);
    reductions<double>(count);
    reductions<bf16>(count);
    reductions<f16>(count);
    reductions<std::int32_t>(count);
    reductions<std::int64_t>(count);
  }
}

TEST_P(DeviceCollectives, ReductionsAroundThePieces) {
  const std::size_t piece = kTinySlot / sizeof(float);
  for (const std::size_t count :
       {piece - 1, piece, piece + 1, 2 * piece - 1, 2 * piece, 2 * piece + 1, 5 * piece + 3})
    reductions<float>(count);
}

TEST_P(DeviceCollectives, AllGatherAndBroadcast) {
  for (const std::size_t count : {0ul, 1ul, 5ul, kTinySlot / 4, kTinySlot + 1}) {
    OnDevice<std::uint8_t> memory(device(), comm(), count * ranks());
    std::vector<std::uint8_t> values(count * ranks(), 255);
    const auto mine = numbers<std::uint8_t>(rank(), count);
    std::copy(
        mine.begin(), mine.end(),
        values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank()) * count));
    memory.write(values);
    comm().all_gather(memory.data(), count, DType::u8);
    std::vector<std::uint8_t> wanted;
    for (int p = 0; p < size(); ++p)
      for (const std::uint8_t value : numbers<std::uint8_t>(p, count)) wanted.push_back(value);
    EXPECT_ALL_RANKS(memory.read() == wanted) << "all_gather of " << count;
    for (int root = 0; root < size(); ++root) {
      memory.write(numbers<std::uint8_t>(rank(), count * ranks()));
      comm().broadcast(memory.data(), count * ranks(), root);
      EXPECT_ALL_RANKS(memory.read() == numbers<std::uint8_t>(root, count * ranks()))
          << "broadcast of " << count * ranks();
    }
  }
}

TEST_P(DeviceCollectives, AllToAllAndRing) {
  for (const std::size_t bytes : {0ul, 1ul, 37ul, kTinySlot + 1}) {
    OnDevice<std::uint8_t> out(device(), comm(), bytes * ranks()),
        in(device(), comm(), bytes * ranks());
    std::vector<std::uint8_t> values, wanted;
    for (int p = 0; p < size(); ++p)
      for (std::size_t i = 0; i < bytes; ++i) {
        values.push_back(static_cast<std::uint8_t>(number(rank(), i) + 32 * p));
        wanted.push_back(static_cast<std::uint8_t>(number(p, i) + 32 * rank()));
      }
    out.write(values);
    comm().all_to_all(out.data(), in.data(), bytes);
    EXPECT_ALL_RANKS(in.read() == wanted) << "all_to_all of " << bytes;
    if (size() == 1) continue;
    const int to = (rank() + 1) % size(), from = (rank() + size() - 1) % size();
    out.write(numbers<std::uint8_t>(rank(), bytes));
    if (rank() == 0) comm().send(out.data(), bytes, to, 7);
    comm().receive(in.data(), bytes, from, 7);
    if (rank() != 0) comm().send(out.data(), bytes, to, 7);
    Stream(device()).synchronize();
    const auto got = in.read();
    const auto sent = numbers<std::uint8_t>(from, bytes);
    EXPECT_ALL_RANKS(std::equal(sent.begin(), sent.end(), got.begin())) << "ring of " << bytes;
  }
}

// The part of rank p has 3000 p + 3 bytes; parts are stored in reverse order with gaps.
TEST_P(DeviceCollectives, ScatterAndGatherUnequalPieces) {
  std::vector<std::int64_t> counts, offsets;
  constexpr std::int64_t kStride = 12000;
  for (int p = 0; p < size(); ++p) {
    counts.push_back(3000 * p + 3);
    offsets.push_back((size() - 1 - p) * kStride + 1);
  }
  const auto at = static_cast<std::size_t>(rank());
  const auto mine = static_cast<std::size_t>(counts[at]);
  const std::size_t all = ranks() * kStride;
  for (int root = 0; root < size(); ++root) {
    OnDevice<std::uint8_t> whole(device(), comm(), all), piece(device(), comm(), mine);
    whole.write(numbers<std::uint8_t>(1, all));
    comm().scatter(whole.data(), counts.data(), offsets.data(), piece.data(), mine, root);
    Stream(device()).synchronize();
    const auto from = static_cast<std::size_t>(offsets[at]);
    const auto source = numbers<std::uint8_t>(1, all);
    const auto got = piece.read();
    EXPECT_ALL_RANKS(
        std::equal(got.begin(), got.end(), source.begin() + static_cast<std::ptrdiff_t>(from)))
        << "scatter from " << root;
    whole.write(std::vector<std::uint8_t>(all, 255));
    piece.write(numbers<std::uint8_t>(rank(), mine));
    comm().gather(piece.data(), mine, whole.data(), counts.data(), offsets.data(), root);
    Stream(device()).synchronize();
    std::vector<std::uint8_t> wanted(all, 255);
    for (int p = 0; p < size() && rank() == root; ++p)
      for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(p)]; ++i)
        wanted[static_cast<std::size_t>(offsets[static_cast<std::size_t>(p)] + i)] =
            static_cast<std::uint8_t>(number(p, static_cast<std::size_t>(i)));
    EXPECT_ALL_RANKS(whole.read() == wanted) << "gather to " << root;
  }
}

// Numbers whose sum depends on the order of additions.
TEST_P(DeviceCollectives, SumsHaveTheBitsOfTheHost) {
  for (const std::size_t count : {std::size_t{1}, kTinySlot / 4 + 1, std::size_t{40000}}) {
    OnDevice<float> memory(device(), comm(), count * ranks());
    const auto own = host().allocate(count * ranks() * sizeof(float));
    auto* expected = static_cast<float*>(own->data());
    std::vector<float> values(count * ranks());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = wild<float>(rank(), i);
    for (const Summation order : {Summation::tree, Summation::fast}) {
      // Small chunks are summed in an order of their own; NCCL has its own order, too.
      const bool cut_alike =
          order == Summation::tree || GetParam() == "mpi" || GetParam() == "node";
      if (!cut_alike) continue;
      memory.write(values);
      std::copy(values.begin(), values.end(), expected);
      comm().all_reduce(memory.data(), count, DType::f32, ReduceOp::sum, order);
      host().all_reduce(expected, count, DType::f32, ReduceOp::sum, order);
      std::vector<float> got = memory.read();
      EXPECT_ALL_RANKS(std::memcmp(got.data(), expected, count * sizeof(float)) == 0) << count;
      memory.write(values);
      std::copy(values.begin(), values.end(), expected);
      comm().reduce_scatter(memory.data(), count, DType::f32, ReduceOp::sum, order);
      host().reduce_scatter(expected, count, DType::f32, ReduceOp::sum, order);
      got = memory.read();
      const std::size_t mine = static_cast<std::size_t>(rank()) * count;
      EXPECT_ALL_RANKS(std::memcmp(got.data() + mine, expected + mine, count * sizeof(float)) == 0)
          << count;
    }
  }
}

TEST_P(DeviceCollectives, DuplicateIsIndependent) {
  const auto second = comm().duplicate("second");
  EXPECT_EQ(second->name(), "second");
  EXPECT_STREQ(second->transport(), staged() ? "staged" : "nccl");
  OnDevice<float> memory(device(), *second, 1);
  memory.write({static_cast<float>(rank() + 1)});
  second->all_reduce(memory.data(), 1, DType::f32, ReduceOp::sum);
  EXPECT_ALL_RANKS(memory.read()[0] == static_cast<float>(size() * (size() + 1) / 2));
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceCollectives,
                         testing::Values("mpi", "node", "tiny", "waiting", "nccl"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace choir::test
