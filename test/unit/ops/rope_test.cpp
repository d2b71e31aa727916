#include "choir/ops/rope.hpp"

#include "kernels/rope.hpp"
#include "test/support/gradcheck.hpp"

namespace choir {
namespace {

using ops::RopePairing;

ops::Rope make(const HostTensor& x, const HostTensor& table, std::int64_t heads, std::int64_t width,
               RopePairing pairing) {
  ops::Rope r;
  r.pairing = pairing, r.x = x, r.heads = heads, r.head_width = width, r.tokens = 5,
  r.first_position = 3;
  r.table = table;
  return r;
}

TEST(Rope, MatchesTheReferenceAndLeavesOtherFeaturesAlone) {
  for (const DType dtype : kElementTypes)
    for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved})
      for (const std::int64_t width : {2, 6, 32, 34, 64, 126}) {
        SCOPED_TRACE(
            fmt::format("{} pairing {} D {}", name_of(dtype), static_cast<int>(pairing), width));
        CpuBench cpu;
        const std::int64_t heads = 3, row_width = heads * width + 11;
        HostTensor x = HostTensor::normal(dtype, {10, row_width}, 1);
        const HostTensor before = x;
        HostTensor exact = x.to(DType::f64);
        HostTensor table(sum_dtype(dtype), {8, width});
        ops::rope_table(cpu.stream, 10000.0, table);
        ops::rope(cpu.stream, make(x, table, heads, width, pairing));
        ref::rope(make(exact, table, heads, width, pairing), 10000.0);
        // Two products and a sum of terms below |a| + |b|, table entries rounded once: 4 roundings.
        const double u = unit_roundoff(sum_dtype(dtype));
        expect_close(x, exact, unit_roundoff(dtype), 4 * u * 8, "rope");
        for (std::int64_t r = 0; r < 10; ++r)
          for (std::int64_t c = heads * width; c < row_width; ++c)
            ASSERT_EQ(x[r * row_width + c], before[r * row_width + c]);
        EXPECT_TRUE(x.guard_intact() && table.guard_intact());
      }
}

TEST(Rope, InverseIsTheTransposeAndTheBackwardPass) {
  CpuBench cpu;
  for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved}) {
    const HostTensor start = HostTensor::normal(DType::f64, {10, 24}, 1);
    const HostTensor w = HostTensor::normal(DType::f64, {10, 24}, 2);
    HostTensor table(DType::f64, {8, 12}), x = start, back = w;
    ops::rope_table(cpu.stream, 500.0, table);
    ops::rope(cpu.stream, make(x, table, 2, 12, pairing));
    auto inverse = make(back, table, 2, 12, pairing);
    inverse.inverse = true;
    ops::rope(cpu.stream, inverse);
    EXPECT_NEAR(dot(w, x), dot(back, start), 1e-12);  // <w, R x> = <R^T w, x>: linear, so exact
    auto undo = make(x, table, 2, 12, pairing);
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
      ops::Rope r = make(*x, table, 1, 16, RopePairing::half_split);
      r.tokens = 1, r.first_position = position;
      ops::rope(cpu.stream, r);
    }
    return dot(a, b);
  };
  EXPECT_NEAR(score(9, 4), score(50, 45), 1e-12);
  EXPECT_GT(std::fabs(score(9, 4) - score(9, 5)), 1e-6);
}

TEST(Rope, RefusesATableThatIsTooShort) {
  CpuBench cpu;
  const HostTensor x(DType::f32, {10, 24}), table(DType::f32, {7, 12});
  EXPECT_THROW(ops::rope(cpu.stream, make(x, table, 2, 12, RopePairing::half_split)), Error);
}

}  // namespace
}  // namespace choir
