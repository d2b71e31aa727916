#include "choir/core/philox.hpp"

#include <gtest/gtest.h>

#include <set>

namespace choir {
namespace {

// Known answers of Random123 (kat_vectors, philox4x32-10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kAll = 0xffffffff;
  EXPECT_EQ(philox({kAll, kAll}, {kAll, kAll, kAll, kAll}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, IndexAndLaneFillTheCounter) {
  const PhiloxKey key{0xa4093822, 0x299f31d0};
  EXPECT_EQ(philox_at(key, 0x85a308d3243f6a88ull, 0x0370734413198a2eull),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamsAndSeedsHaveTheirOwnKeys) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 100; ++seed)
    for (const char* stream : {"init", "dropout", "data", "sample"}) {
      const PhiloxKey key = philox_key(seed, stream);
      keys.insert((std::uint64_t{key.k1} << 32) | key.k0);
    }
  EXPECT_EQ(keys.size(), 400u);
}

TEST(Philox, UniformStaysInItsInterval) {
  EXPECT_EQ(uniform01(0), 0.0);
  EXPECT_LT(uniform01(0xffffffff), 1.0);
  EXPECT_EQ(uniform01(0x80000000), 0.5);
}

// Mean 0, variance 1, third moment 0, fourth 3; the standard errors for n = 200,000 samples are
// 1/sqrt(n), sqrt(2/n), sqrt(15/n), sqrt(96/n); five of them are allowed.
TEST(Philox, NormalHasItsMoments) {
  constexpr int kSamples = 200000;
  const PhiloxKey key = philox_key(1, "test");
  double sums[4] = {};
  for (int i = 0; i < kSamples; ++i) {
    const double x = normal_at(key, static_cast<std::uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x));
    double power = 1;
    for (double& sum : sums) sum += power *= x;
  }
  const double n = kSamples;
  EXPECT_NEAR(sums[0] / n, 0, 5 * std::sqrt(1 / n));
  EXPECT_NEAR(sums[1] / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(sums[2] / n, 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(sums[3] / n, 3, 5 * std::sqrt(96 / n));
}

}  // namespace
}  // namespace choir
