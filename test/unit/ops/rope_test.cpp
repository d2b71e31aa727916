#include "test/support/gradcheck.hpp"
#include "test/support/rope_case.hpp"

namespace choir::test {
namespace {

using ops::RopePairing;

TEST(Rope, MatchesTheReferenceAndLeavesOtherFeaturesAlone) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved})
      for (const std::int64_t width : {2, 6, 32, 34, 64, 126})
        check_rope(device, dtype, pairing, width, 11);
}

TEST(Rope, InverseIsTheTransposeAndTheBackwardPass) {
  CpuBench cpu;
  for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved}) {
    const HostTensor start = HostTensor::normal(DType::f64, {10, 24}, 1);
    const HostTensor w = HostTensor::normal(DType::f64, {10, 24}, 2);
    HostTensor table(DType::f64, {8, 12}), x = start, back = w;
    ops::rope_table(cpu.stream, 500.0, table);
    ops::rope(cpu.stream, rope_arguments(x, table, 2, 12, pairing));
    auto inverse = rope_arguments(back, table, 2, 12, pairing);
    inverse.inverse = true;
    ops::rope(cpu.stream, inverse);
    EXPECT_NEAR(dot(w, x), dot(back, start), 1e-12);  // <w, R x> = <R^T w, x>: linear, so exact
    auto undo = rope_arguments(x, table, 2, 12, pairing);
    undo.inverse = true;
    ops::rope(cpu.stream, undo);
    expect_close(x, start, 0, 16 * 0x1p-53, "there and back");
  }
}

TEST(Rope, ScoresDependOnDistanceOnly) {
  CpuBench cpu;
  HostTensor table(DType::f64, {64, 16});
  ops::rope_table(cpu.stream, 10000.0, table);
  const auto score = [&](std::int64_t p, std::int64_t q) {
    HostTensor a = HostTensor::normal(DType::f64, {1, 16}, 1),
               b = HostTensor::normal(DType::f64, {1, 16}, 2);
    for (auto [x, position] : {std::pair{&a, p}, std::pair{&b, q}}) {
      ops::Rope r = rope_arguments(*x, table, 1, 16, RopePairing::half_split);
      r.tokens = 1, r.first_position = position;
      ops::rope(cpu.stream, r);
    }
    return dot(a, b);
  };
  EXPECT_NEAR(score(9, 4), score(50, 45), 1e-12);
  EXPECT_GT(std::fabs(score(9, 4) - score(9, 5)), 1e-6);
}

// Positions 3 to 7: the last ones, or all of them, are padding.
TEST(Rope, PaddingNeedsNoRowOfTheTable) {
  CpuDevice device;
  for (const std::int64_t end : {8, 7, 4, 3, 2})
    for (const DType dtype : kElementTypes)
      check_rope(device, dtype, RopePairing::half_split, 12, 3, 0, end);
}

TEST(Rope, RefusesATableThatIsTooShort) {
  CpuBench cpu;
  const HostTensor x(DType::f32, {10, 24}), table(DType::f32, {7, 12});
  EXPECT_THROW(ops::rope(cpu.stream, rope_arguments(x, table, 2, 12, RopePairing::half_split)),
               Error);
  auto args = rope_arguments(x, table, 2, 12, RopePairing::half_split);
  args.position_end = 8;
  EXPECT_THROW(ops::rope(cpu.stream, args), Error);
}

}  // namespace
}  // namespace choir::test
