#include "src/data/text/token_samples.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "src/data/sampling/permutation.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

TEST(Permutation, IsOneForEverySize) {
  for (std::uint64_t n = 1; n <= 300; ++n) {
    const Permutation p(n, philox_key(1, "test"), n % 5);
    std::vector<bool> hit(n, false);
    for (std::uint64_t i = 0; i < n; ++i) {
      ASSERT_LT(p(i), n);
      ASSERT_FALSE(hit[p(i)]) << n;
      hit[p(i)] = true;
    }
  }
}

TEST(Permutation, KnownAnswers) {  // from an independent program
  const Permutation p(10, philox_key(3, "test"), 2);
  const std::uint64_t expected[] = {6, 1, 5, 9, 8, 2, 0, 7, 4, 3};
  for (std::uint64_t i = 0; i < 10; ++i) EXPECT_EQ(p(i), expected[i]);
}

// The destination of i must look uniform: chi-squared over 16 bins for element 0 in 4,096
// permutations. The 99.99 % point for 15 degrees of freedom is 44.3.
TEST(Permutation, IsUniformOverNumbers) {
  std::vector<int> bins(16, 0);
  for (std::uint64_t number = 0; number < 4096; ++number)
    ++bins[Permutation(16, philox_key(9, "test"), number)(0)];
  double chi = 0;
  for (const int count : bins) chi += (count - 256.0) * (count - 256.0) / 256.0;
  EXPECT_LT(chi, 44.3);
}

TEST(Sampler, KnownAnswers) {  // from an independent program
  const Sampler big(1003854, 64, 1337);
  EXPECT_EQ(big.windows_per_epoch(), 15684);
  const std::pair<std::int64_t, std::int64_t> known[] = {
      {0, 817917},     {1, 251837},     {2, 572797},         {15683, 254205},
      {15684, 387411}, {15685, 941971}, {1000000000, 229196}};
  for (const auto& [sample, start] : known) EXPECT_EQ(big.window(sample).start, start);
  const Sampler small(37, 5, 7);
  const std::int64_t starts[] = {17, 12, 7, 22, 2, 27, 17, 27, 2, 7, 12, 22, 17, 12};
  for (std::int64_t i = 0; i < 14; ++i) EXPECT_EQ(small.window(i).start, starts[i]);
}

TEST(Sampler, AnEpochUsesNoPositionTwice) {
  for (const std::int64_t tokens : {6, 7, 10, 11, 37, 500}) {
    const Sampler sampler(tokens, 5, 42);
    const std::int64_t n = sampler.windows_per_epoch();
    std::set<std::int64_t> phases;
    for (std::int64_t epoch = 0; epoch < 200; ++epoch) {
      std::vector<std::int64_t> starts;
      for (std::int64_t i = 0; i < n; ++i) starts.push_back(sampler.window(epoch * n + i).start);
      std::sort(starts.begin(), starts.end());
      EXPECT_GE(starts.front(), 0);
      EXPECT_LE(starts.back() + 5, tokens - 1);
      for (std::size_t i = 1; i < starts.size(); ++i) ASSERT_EQ(starts[i], starts[i - 1] + 5);
      EXPECT_LT(tokens - 1 - 5 * n, 2 * 5);
      phases.insert(starts.front());
    }
    // All possible phases occur; a stream of 2T tokens has at least T of them.
    EXPECT_EQ(std::ssize(phases), tokens - 5 * n);
    if (tokens >= 10) {
      EXPECT_GE(std::ssize(phases), 5);
    }
  }
}

TEST(Sampler, TooShortIsSaidWithNumbers) {
  EXPECT_DATA_ERROR(Sampler(64, 64, 1), "has 64 tokens, fewer than the 65 of one sample");
  EXPECT_EQ(Sampler(65, 64, 1).window(5).start, 0);
  EXPECT_DATA_ERROR(EvalSampler(1, 8), "has 1 token;");
}

TEST(EvalSampler, CoversEveryTargetOnce) {
  for (std::int64_t tokens = 2; tokens < 40; ++tokens) {
    const EvalSampler sampler(tokens, 8);
    std::int64_t next = 0;
    for (std::int64_t w = 0; w < sampler.windows(); ++w) {
      EXPECT_EQ(sampler.window(w).start, next);
      EXPECT_GE(sampler.window(w).targets, 1);
      next += sampler.window(w).targets;
    }
    EXPECT_EQ(next, tokens - 1);
    EXPECT_EQ(sampler.window(sampler.windows()), TokenWindow{});
  }
}

}  // namespace
}  // namespace choir
