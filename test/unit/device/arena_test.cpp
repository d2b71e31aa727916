#include "choir/device/arena.hpp"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "choir/core/philox.hpp"
#include "src/device/cpu_device.hpp"
#include "src/device/null_device.hpp"

namespace choir {
namespace {

/// Bytes that the C library has allocated.
std::size_t heap_in_use() {
  return mallinfo2().uordblks;
}

TEST(Arena, ReusesTheSmallestHoleThatFits) {
  CpuDevice device;
  Arena arena(device, 1 << 16);
  Tensor a = arena.allocate(DType::u8, {256}, "a");
  Tensor keep1 = arena.allocate(DType::u8, {64}, "keep1");
  Tensor b = arena.allocate(DType::u8, {128}, "b");
  Tensor keep2 = arena.allocate(DType::u8, {64}, "keep2");
  void* const at_a = a.data;
  void* const at_b = b.data;
  a.reset();
  b.reset();
  const std::size_t peak = arena.peak();
  Tensor small = arena.allocate(DType::u8, {100}, "small");
  EXPECT_EQ(small.data, at_b);
  Tensor first_half = arena.allocate(DType::u8, {128}, "first half");
  Tensor second_half = arena.allocate(DType::u8, {128}, "second half");
  EXPECT_EQ(first_half.data, at_a);
  EXPECT_EQ(second_half.data, static_cast<std::byte*>(at_a) + 128);
  EXPECT_EQ(arena.peak(), peak);
}

// Offsets are those of the plan, in whatever order the tensors of a step end.
TEST(Arena, OfEqualHolesTakesTheLowest) {
  CpuDevice device;
  for (const std::array<std::size_t, 3>& order : {std::array<std::size_t, 3>{1, 3, 5}, {5, 3, 1}}) {
    Arena arena(device, 1 << 16);
    std::vector<Tensor> row;
    for (int i = 0; i < 7; ++i) row.push_back(arena.allocate(DType::u8, {64}, "row"));
    for (const std::size_t i : order) row[i].reset();
    for (const std::size_t i : {1, 3, 5}) {
      row[i] = arena.allocate(DType::u8, {64}, "again");
      EXPECT_EQ(row[i].data, static_cast<std::byte*>(row[0].data) + 64 * i);
    }
  }
}

TEST(Arena, NeighbouringHolesMerge) {
  CpuDevice device;
  Arena arena(device, 1 << 16);
  std::vector<Tensor> row;
  for (int i = 0; i < 5; ++i) row.push_back(arena.allocate(DType::f32, {16}, "row"));
  void* const at = row[1].data;
  row[1].reset();
  row[3].reset();
  row[2].reset();  // joins both neighbours
  const Tensor wide = arena.allocate(DType::f32, {48}, "wide");
  EXPECT_EQ(wide.data, at);
  EXPECT_EQ(arena.peak(), 5u * 64);
}

TEST(Arena, GivesBackTheTop) {
  CpuDevice device;
  Arena arena(device, 1 << 16);
  for (int i = 0; i < 1000; ++i) arena.allocate(DType::f32, {1000}, "temporary");
  EXPECT_EQ(arena.peak(), 4032u);  // 4000 rounded up to 64
  EXPECT_EQ(arena.live(), 0u);
  EXPECT_EQ(arena.peak_live(), 4032u);
}

TEST(Arena, HandlesShareABlock) {
  CpuDevice device;
  Arena arena(device, 1 << 16);
  Tensor a = arena.allocate(DType::f32, {4, 4}, "a");
  EXPECT_TRUE(a.sole_owner());
  Tensor part = a.view(a.slice(1, 2));
  EXPECT_FALSE(a.sole_owner());
  EXPECT_EQ(part.data, a.as<float>() + 4);
  a.reset();
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(arena.live(), 64u);
  EXPECT_TRUE(part.sole_owner());
  Tensor moved = std::move(part);
  EXPECT_TRUE(part.empty());
  EXPECT_EQ(arena.live(), 64u);
  moved = Tensor();
  EXPECT_EQ(arena.live(), 0u);
}

TEST(Arena, EmptyTensorsHaveAPlaceAndEverythingIsAligned) {
  CpuDevice device;
  Arena arena(device, 1 << 16);
  std::vector<Tensor> all;
  for (const std::int64_t n : {0, 1, 63, 64, 65, 1000}) {
    all.push_back(arena.allocate(DType::u8, {n}, "x"));
    EXPECT_NE(all.back().data, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(all.back().data) % Arena::kAlignment, 0u);
  }
}

TEST(Arena, SaysWhichTensorDidNotFit) {
  CpuDevice device;
  Arena arena(device, 1024);
  const Tensor first = arena.allocate(DType::u8, {1000}, "first");
  try {
    arena.allocate(DType::f32, {1 << 18}, "logits");
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'logits'"), std::string::npos) << text;
    EXPECT_NE(text.find("1.0 MiB"), std::string::npos) << text;
  }
  EXPECT_EQ(arena.live(), 1024u);  // a refused request leaves nothing behind
}

/// A random sequence of requests and releases; each live tensor is filled with its own number, so
/// that overlapping tensors would be detected.
struct Churn {
  static constexpr int kSlots = 60, kRequests = 4000;
  std::vector<Tensor> slots = std::vector<Tensor>(kSlots);
  std::vector<std::uint8_t> mark = std::vector<std::uint8_t>(kSlots);
  std::size_t overlaps = 0, heap_growth = 0;

  void run(Arena& arena, bool touch) {
    const std::size_t heap = heap_in_use();
    for (int i = 0; i < kRequests; ++i) {
      const PhiloxBlock r = philox_at({7, 9}, static_cast<std::uint64_t>(i));
      const std::size_t at = r[0] % kSlots;
      if (touch && !slots[at].empty() && !intact(at)) ++overlaps;
      slots[at].reset();
      if (r[1] % 3 != 0)
        slots[at] = arena.allocate(DType::u8, {1 + r[2] % (1u << (r[3] % 15))}, "churn");
      mark[at] = static_cast<std::uint8_t>(r[3] >> 24);
      if (touch && !slots[at].empty()) std::memset(slots[at].data, mark[at], slots[at].bytes());
      heap_growth = std::max(heap_growth, heap_in_use() - std::min(heap, heap_in_use()));
    }
    for (Tensor& slot : slots) slot.reset();
  }
  bool intact(std::size_t at) const {
    const auto* bytes = static_cast<const std::uint8_t*>(slots[at].data);
    return std::all_of(bytes, bytes + slots[at].bytes(),
                       [&](std::uint8_t b) { return b == mark[at]; });
  }
};

TEST(Arena, PlanOnTheNullDeviceIsExactOnTheCpu) {
  NullDevice nowhere;
  Arena plan(nowhere, Arena::kUnbounded);
  Churn planned;
  planned.run(plan, false);
  EXPECT_EQ(plan.live(), 0u);
  EXPECT_GT(plan.peak(), plan.peak_live());  // the sequence really causes fragmentation
  EXPECT_LT(plan.peak(), 2 * plan.peak_live());

  CpuDevice device;
  Arena exact(device, plan.peak());  // not a byte more
  Churn real;
  real.run(exact, true);
  EXPECT_EQ(real.overlaps, 0u);
  EXPECT_EQ(exact.peak(), plan.peak());
  EXPECT_EQ(exact.peak_live(), plan.peak_live());
  EXPECT_EQ(real.heap_growth, 0u) << "the arena asked the system allocator";

  Arena short_by_one(device, plan.peak() - Arena::kAlignment);
  Churn failing;
  EXPECT_THROW(failing.run(short_by_one, false), Error);
}

/// A small pipeline: three micro-batches of these shapes enter, each keeps some tensors, and they
/// leave in order.
void flow(Arena& arena, const std::vector<std::size_t>& shapes) {
  constexpr std::array<std::array<std::int64_t, 4>, 3> kSizes{
      {{300, 9000, 700, 64}, {5000, 100, 100, 1000}, {900, 900, 6000, 200}}};
  arena.begin_sequence();
  std::vector<std::vector<Tensor>> kept;
  for (const std::size_t shape : shapes) {
    kept.emplace_back();
    for (const std::int64_t size : kSizes[shape]) {
      const Tensor temporary = arena.allocate(DType::u8, {size * 2}, "temporary");
      kept.back().push_back(arena.allocate(DType::u8, {size}, "kept"));
    }
  }
  while (!kept.empty()) {
    const Tensor gradient = arena.allocate(DType::u8, kept.front().front().shape, "gradient");
    kept.erase(kept.begin());
  }
  arena.end_sequence();
}

// Each shape is planned alone; any mixture has the same peak.
TEST(Arena, SequencesDoNotDependOnTheOrderOfSizes) {
  NullDevice nowhere;
  Arena plan(nowhere, Arena::kUnbounded);
  for (int round = 0; round < 2; ++round)
    for (const std::size_t shape : {0, 1, 2}) flow(plan, {shape, shape, shape});
  EXPECT_EQ(plan.requests().size(), 27u);
  CpuDevice device;
  for (std::size_t mix = 0; mix < 27; ++mix) {
    Arena arena(device, plan.peak());
    arena.set_requests(plan.requests());
    flow(arena, {mix % 3, mix / 3 % 3, mix / 9});
    EXPECT_EQ(arena.live(), 0u);
    EXPECT_EQ(arena.peak(), plan.peak()) << mix;
  }
}

}  // namespace
}  // namespace choir
