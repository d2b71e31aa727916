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

TEST(Rope, OnlyTheFirstFeaturesOfAHeadRotate) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved})
      for (const auto& [width, rotated] : {std::pair{16, 4}, {7, 6}, {80, 32}, {128, 96}})
        check_rope(device, dtype, pairing, width, 11, 0, ops::kNoPositionEnd, 0, rotated);
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

TEST(Rope, ATableMayBeginAnywhere) {
  CpuBench cpu;
  HostTensor all(DType::f64, {64, 16}), some(DType::f64, {3, 16});
  ops::rope_table(cpu.stream, 10000.0, all);
  ops::rope_table(cpu.stream, 10000.0, some, {}, 61);
  for (std::int64_t i = 0; i < some.count(); ++i) EXPECT_EQ(some[i], all[61 * 16 + i]) << i;
}

using ops::RopeScaling;

// The scaling of Llama 3.1 and 3.2, with the values of published configurations.
TEST(Rope, FrequenciesOfLlama3) {
  RopeScaling s{.kind = RopeScaling::Kind::llama3, .factor = 8, .original = 8192};
  const auto f = [&](std::int64_t i) { return ops::rope_frequency(5e5, s, 128, i); };
  EXPECT_NEAR(f(0), 1, 1e-15);
  EXPECT_NEAR(f(28), 0.00321144599, 1e-11);
  EXPECT_NEAR(f(29), 0.00216657076, 1e-11);
  EXPECT_NEAR(f(30), 0.00137189357, 1e-11);
  EXPECT_NEAR(f(33), 0.00031269375, 1e-11);
  EXPECT_NEAR(f(63), 3.06892599e-07, 1e-15);
  s.factor = 32;
  EXPECT_NEAR(f(30), 0.00129054793, 1e-11);
}

TEST(Rope, FrequenciesOfLinearAndYarn) {
  const RopeScaling linear{.kind = RopeScaling::Kind::linear, .factor = 4};
  EXPECT_NEAR(ops::rope_frequency(1e4, linear, 8, 1), 0.025, 1e-17);
  EXPECT_EQ(ops::rope_attention_factor(linear), 1);
  // D = 16, theta = 1e4, 400 positions: pairs 0.6 and 3.6 turn 32 times and once; rounded to the
  // ramp from floor(16 ln(400 / (64 pi)) / (2 ln 1e4)) = 0 to ceil(16 ln(400 / (2 pi)) / ...) = 4.
  RopeScaling yarn{.kind = RopeScaling::Kind::yarn, .factor = 4, .original = 400};
  for (std::int64_t i = 0; i < 8; ++i) {
    const double f = std::pow(1e4, -static_cast<double>(i) / 8);
    const double ramp = std::min(static_cast<double>(i) / 4, 1.0);
    EXPECT_NEAR(ops::rope_frequency(1e4, yarn, 16, i), f / 4 * ramp + f * (1 - ramp), 1e-16) << i;
  }
  EXPECT_NEAR(ops::rope_attention_factor(yarn), 1.1386294361119890, 1e-15);
  yarn.attention_factor = 0.5;
  EXPECT_EQ(ops::rope_attention_factor(yarn), 0.5);
}

TEST(Rope, FrequenciesOfLongrope) {
  RopeScaling s{.kind = RopeScaling::Kind::longrope,
                .factor = 32,
                .original = 4096,
                .divisors = {1, 1.25, 2.5, 40}};
  for (std::int64_t i = 0; i < 4; ++i)
    EXPECT_NEAR(ops::rope_frequency(1e4, s, 8, i),
                std::pow(10, -static_cast<double>(i)) / s.divisors[static_cast<std::size_t>(i)],
                1e-15);
  EXPECT_NEAR(ops::rope_attention_factor(s), 1.1902380714238083, 1e-15) << "of Phi-4-mini";
  s.factor = 1;
  EXPECT_EQ(ops::rope_attention_factor(s), 1);
  s.attention_factor = 1.5;
  EXPECT_EQ(ops::rope_attention_factor(s), 1.5);
  EXPECT_THROW(ops::rope_frequency(1e4, s, 10, 0), Error) << "four divisors of five pairs";
}

TEST(Rope, TheTableHasScaledAnglesAndTheAttentionFactor) {
  CpuBench cpu;
  const RopeScaling yarn{.kind = RopeScaling::Kind::yarn, .factor = 4, .original = 400};
  HostTensor table(DType::f64, {9, 16});
  ops::rope_table(cpu.stream, 1e4, table, yarn);
  const double angle = 7 * ops::rope_frequency(1e4, yarn, 16, 3), grown = 0.1 * std::log(4.0) + 1;
  EXPECT_NEAR(table[7 * 16 + 3], grown * std::cos(angle), 1e-15);
  EXPECT_NEAR(table[7 * 16 + 8 + 3], grown * std::sin(angle), 1e-15);
}

// Positions 3 to 7; the last ones, or all of them, are padding.
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
