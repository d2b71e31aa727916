// Choosing tokens: against probabilities computed by hand.
#include "src/run/token_choice.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "choir/core/philox.hpp"

namespace choir {
namespace {

// Probabilities 1/2, 1/4, 1/8, 1/16, 1/16, not in order.
const std::vector<float> kLogits{std::log(0.125f), std::log(0.5f), std::log(0.0625f),
                                 std::log(0.25f), std::log(0.0625f)};

std::vector<double> shares(const TokenChoice& choice, int draws = 20000) {
  TokenChooser chooser(choice, 5);
  std::vector<double> share(5, 0.0);
  for (int i = 0; i < draws; ++i)
    share[static_cast<std::size_t>(chooser.choose(kLogits, i))] += 1.0 / draws;
  return share;
}

void expect_shares(const TokenChoice& choice, const std::vector<double>& expected) {
  const std::vector<double> actual = shares(choice);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    // Five standard deviations of a share of 20000 draws.
    EXPECT_NEAR(actual[i], expected[i],
                1e-9 + 5 * std::sqrt(expected[i] * (1 - expected[i]) / 20000))
        << i;
    if (expected[i] == 0) {
      EXPECT_EQ(actual[i], 0) << "token " << i << " is out of the question";
    }
  }
}

TEST(TokenChooser, FollowsTheDistribution) {
  expect_shares({.seed = 1}, {0.125, 0.5, 0.0625, 0.25, 0.0625});
}

TEST(TokenChooser, TemperatureZeroTakesTheBest) {
  expect_shares({.temperature = 0}, {0, 1, 0, 0, 0});
  TokenChooser chooser({.temperature = 0}, 3);
  EXPECT_EQ(chooser.choose(std::vector<float>{1, 2, 2}, 0), 1) << "ties go to the smaller id";
}

TEST(TokenChooser, TemperatureSquaresProbabilities) {
  const double sum = 0.25 + 0.0625 + 0.015625 + 2 * 0.00390625;
  expect_shares({.temperature = 0.5, .seed = 2},
                {0.015625 / sum, 0.25 / sum, 0.00390625 / sum, 0.0625 / sum, 0.00390625 / sum});
}

TEST(TokenChooser, TopK) {
  expect_shares({.top_k = 2, .seed = 3}, {0, 2.0 / 3, 0, 1.0 / 3, 0});
  expect_shares({.top_k = 1, .seed = 3}, {0, 1, 0, 0, 0});
  expect_shares({.top_k = 99, .seed = 3}, {0.125, 0.5, 0.0625, 0.25, 0.0625});
}

TEST(TokenChooser, TopPIsTheSmallestSetThatReachesIt) {
  expect_shares({.top_p = 0.4, .seed = 4}, {0, 1, 0, 0, 0});
  expect_shares({.top_p = 0.7, .seed = 4}, {0, 2.0 / 3, 0, 1.0 / 3, 0});
  expect_shares({.top_p = 0.8, .seed = 4}, {1.0 / 7, 4.0 / 7, 0, 2.0 / 7, 0});
  expect_shares({.top_p = 1e-9, .seed = 4}, {0, 1, 0, 0, 0});
  expect_shares({.top_k = 3, .top_p = 0.7, .seed = 4}, {0, 2.0 / 3, 0, 1.0 / 3, 0});
}

TEST(TokenChooser, SeedAndIndexAreTheOnlyState) {
  TokenChooser a({.seed = 7}, 5), b({.seed = 7}, 5), c({.seed = 8}, 5);
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    const std::int32_t token = a.choose(kLogits, i);
    EXPECT_EQ(token, b.choose(kLogits, i));
    different += token != c.choose(kLogits, i);
  }
  EXPECT_EQ(a.choose(kLogits, 3), b.choose(kLogits, 3)) << "earlier calls leave nothing behind";
  EXPECT_GT(different, 10);
}

/// Sorts everything first, like the definition.
std::int32_t chosen_in_order(const std::vector<float>& logits, const TokenChoice& choice,
                             std::int64_t index) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (choice.top_k > 0) order.resize(static_cast<std::size_t>(choice.top_k));
  const auto weight = [&](std::int32_t token) {
    return std::exp(static_cast<double>(logits[static_cast<std::size_t>(token)]) /
                    choice.temperature);
  };
  double total = 0, mass = 0;
  for (const std::int32_t token : order) total += weight(token);
  std::size_t kept = 0;
  while (kept < order.size() && mass < choice.top_p * total) mass += weight(order[kept++]);
  double left = uniform01(philox_at(philox_key(choice.seed, "generate"),
                                    static_cast<std::uint64_t>(index))[0]) *
                mass;
  std::size_t i = 0;
  while (i + 1 < kept && (left -= weight(order[i])) >= 0) ++i;
  return order[i];
}

// Only the front of a large vocabulary is sorted, and only as far as needed.
TEST(TokenChooser, LargeVocabulary) {
  std::vector<float> logits(3000);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>(i * 7919 % 1009) / 300.0f;  // equal ones among them
  std::set<std::int32_t> seen;
  for (const TokenChoice& choice :
       {TokenChoice{.seed = 1}, TokenChoice{.top_k = 500, .seed = 2},
        TokenChoice{.top_p = 0.9, .seed = 3}, TokenChoice{.temperature = 0.2, .seed = 4}}) {
    TokenChooser chooser(choice, std::ssize(logits));
    for (int i = 0; i < 200; ++i) {
      const std::int32_t token = chooser.choose(logits, i);
      ASSERT_EQ(token, chosen_in_order(logits, choice, i)) << "draw " << i;
      seen.insert(token);
    }
  }
  EXPECT_GT(seen.size(), 300u);
}

// A diverged model gives NaN: any order of these is correct, as long as nothing is read beyond the
// end.
TEST(TokenChooser, NotANumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = HUGE_VALF;
  TokenChooser chooser({.seed = 1}, 200);
  std::vector<float> logits(200, nan);
  EXPECT_EQ(chooser.choose(logits, 0), 0);
  for (std::size_t i = 0; i < logits.size(); i += 3) logits[i] = static_cast<float>(i % 7);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(chooser.choose(logits, i) % 3, 0) << "a NaN was chosen";
  logits[151] = inf;
  EXPECT_EQ(chooser.choose(logits, 0), 151);
}

}  // namespace
}  // namespace choir
