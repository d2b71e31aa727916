#include "src/data/speech/ctc_decoder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "choir/core/error.hpp"

namespace choir {
namespace {

constexpr std::int32_t kBlank = 3;

TEST(CtcCollapse, JoinsRepeatsAndDropsBlanks) {
  const std::vector<std::int32_t> best = {3, 0, 0, 3, 0, 1, 1, 1, 2, 3, 3};
  EXPECT_EQ(ctc_collapse(best, kBlank),
            (std::vector<TimedLabel>{{0, 1, 2}, {0, 4, 4}, {1, 5, 7}, {2, 8, 8}}));
  EXPECT_TRUE(ctc_collapse(std::vector<std::int32_t>{3, 3}, kBlank).empty());
  EXPECT_TRUE(ctc_collapse({}, kBlank).empty());
}

std::vector<float> rows(const std::vector<std::vector<double>>& probabilities) {
  std::vector<float> y;
  for (const auto& row : probabilities)
    for (const double p : row) y.push_back(static_cast<float>(std::log(p)));
  return y;
}

// The search exists for this case: the best path is all blank (0.36), but "a" has a higher
// probability.
TEST(CtcBeamSearch, AddsPathsOfAText) {
  const std::vector<float> y = rows({{0.4, 0.6}, {0.4, 0.6}});
  const auto found = ctc_beam_search(y, 2, {.beam = 4, .best = 2});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].ids(), std::vector<std::int32_t>{0});
  EXPECT_NEAR(found[0].log_probability, std::log(0.64), 1e-6);
  EXPECT_TRUE(found[1].ids().empty());
  EXPECT_NEAR(found[1].log_probability, std::log(0.36), 1e-6);
}

/// Pseudo-random distributions.
std::vector<float> random_rows(std::size_t frames, std::size_t vocabulary, std::uint32_t state) {
  std::vector<std::vector<double>> table(frames, std::vector<double>(vocabulary));
  for (auto& row : table) {
    double sum = 0;
    for (double& p : row) {
      state = state * 1664525u + 1013904223u;
      p = std::exp(4.0 * static_cast<double>(state >> 8) / (1 << 24)), sum += p;
    }
    for (double& p : row) p /= sum;
  }
  return rows(table);
}

// If the beam keeps everything, the probabilities are the sums over all paths.
TEST(CtcBeamSearch, IsExactWithAWideBeam) {
  constexpr std::size_t kFrames = 6, kSymbols = 4;
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    const std::vector<float> y = random_rows(kFrames, kSymbols, seed);
    std::map<std::vector<std::int32_t>, double> all;
    for (std::size_t path = 0; path < 4096; ++path) {
      std::vector<std::int32_t> symbols, labels;
      double log_p = 0;
      for (std::size_t t = 0, rest = path; t < kFrames; ++t, rest /= kSymbols) {
        symbols.push_back(static_cast<std::int32_t>(rest % kSymbols));
        log_p += static_cast<double>(y[t * kSymbols + rest % kSymbols]);
      }
      for (const TimedLabel& label : ctc_collapse(symbols, kBlank)) labels.push_back(label.label);
      all[labels] += std::exp(log_p);
    }
    const auto found =
        ctc_beam_search(y, kSymbols, {.beam = 5000, .best = 5000, .least = -INFINITY});
    EXPECT_EQ(found.size(), all.size());
    double before = 0;
    for (const CtcHypothesis& h : found) {
      EXPECT_NEAR(std::exp(h.log_probability), all[h.ids()], 1e-12);
      EXPECT_LE(h.log_probability, before);
      before = h.log_probability;
    }
    // A beam with room for the best text finds it, too; a narrow one finds a text that is at most
    // as likely.
    EXPECT_EQ(ctc_beam_search(y, kSymbols, {.beam = 50})[0].ids(), found[0].ids());
    EXPECT_LE(ctc_beam_search(y, kSymbols, {.beam = 1})[0].log_probability,
              found[0].log_probability + 1e-12);
  }
}

/// Algorithm 1 of Hannun et al. as published: every symbol extends every prefix.
std::vector<std::pair<double, std::vector<std::int32_t>>> plain_search(const std::vector<float>& y,
                                                                       std::size_t symbols,
                                                                       std::size_t beam) {
  using Labels = std::vector<std::int32_t>;
  struct Ends {
    double blank = 0, label = 0;
  };
  std::map<Labels, Ends> kept = {{{}, {1, 0}}};
  for (std::size_t t = 0; t < y.size() / symbols; ++t) {
    std::map<Labels, Ends> next;
    const auto p = [&](std::size_t c) { return std::exp(static_cast<double>(y[t * symbols + c])); };
    for (const auto& [labels, ends] : kept) {
      next[labels].blank += (ends.blank + ends.label) * p(symbols - 1);
      if (!labels.empty())
        next[labels].label += ends.label * p(static_cast<std::size_t>(labels.back()));
      for (std::size_t c = 0; c + 1 < symbols; ++c) {
        Labels longer = labels;
        longer.push_back(static_cast<std::int32_t>(c));
        const bool repeats = !labels.empty() && labels.back() == longer.back();
        next[longer].label += (ends.blank + (repeats ? 0 : ends.label)) * p(c);
      }
    }
    std::vector<std::pair<double, Labels>> order;
    for (const auto& [labels, ends] : next) order.emplace_back(-(ends.blank + ends.label), labels);
    std::sort(order.begin(), order.end());
    kept.clear();
    for (std::size_t i = 0; i < std::min(beam, order.size()); ++i)
      kept[order[i].second] = next[order[i].second];
  }
  std::vector<std::pair<double, Labels>> found;
  for (const auto& [labels, ends] : kept) found.emplace_back(-(ends.blank + ends.label), labels);
  std::sort(found.begin(), found.end());
  return found;
}

// Symbols for which no beam has room are not tried: the result is the same.
TEST(CtcBeamSearch, IsThePlainSearch) {
  for (const std::uint32_t seed : {4u, 5u, 6u})
    for (const std::int64_t beam : {1, 2, 5, 12}) {
      const std::vector<float> y = random_rows(25, 30, seed);
      const auto wanted = plain_search(y, 30, static_cast<std::size_t>(beam));
      const auto found = ctc_beam_search(y, 30, {.beam = beam, .best = beam, .least = -INFINITY});
      ASSERT_EQ(found.size(), wanted.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].ids(), wanted[i].second) << "beam " << beam << " place " << i;
        EXPECT_NEAR(found[i].log_probability, std::log(-wanted[i].first), 1e-10);
      }
    }
}

TEST(CtcBeamSearch, TimesOfClearSpeech) {
  const double h = 0.97, l = 0.01;
  const std::vector<float> y = rows({{l, l, l, h},
                                     {h, l, l, l},
                                     {h, l, l, l},
                                     {l, l, l, h},
                                     {h, l, l, l},
                                     {l, l, h, l},
                                     {l, l, l, h}});
  const auto found = ctc_beam_search(y, 4, {.beam = 8});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].labels, (std::vector<TimedLabel>{{0, 1, 2}, {0, 4, 4}, {2, 5, 5}}));
}

TEST(CtcBeamSearch, TiesHaveAnOrder) {
  const std::vector<float> y(3 * 4, static_cast<float>(std::log(0.25)));
  const auto found = ctc_beam_search(y, 4, {.beam = 100, .best = 4});
  // One label has 6 of the 64 paths; two different labels have 5, two equal ones 1, no label 1.
  const std::vector<std::vector<std::int32_t>> wanted = {{0}, {1}, {2}, {0, 1}};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(found[i].ids(), wanted[i]);
    EXPECT_NEAR(found[i].log_probability, std::log((i < 3 ? 6 : 5) / 64.0), 1e-6);
  }
}

TEST(CtcBeam, ForgettingChangesNothing) {
  constexpr std::int64_t kSymbols = 5, kFrames = 400;
  CtcBeam all(kSymbols, {.beam = 6, .best = 6});
  CtcBeam forgetful(kSymbols, {.beam = 6, .best = 6, .remembered = 1});
  for (std::int64_t t = 0; t < kFrames; ++t) {
    std::vector<float> frame;
    double sum = 0;
    for (std::int64_t c = 0; c < kSymbols; ++c)
      sum += std::exp(frame.emplace_back(
          static_cast<float>(4 * std::sin(static_cast<double>(t * t % 997 * (c + 2) + 3 * c)))));
    for (float& x : frame) x -= static_cast<float>(std::log(sum));
    all.frame(frame), forgetful.frame(frame);
    if (t % 57 != 0 && t + 1 != kFrames) continue;
    const auto a = all.results(), b = forgetful.results();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].labels, b[i].labels) << t;
      EXPECT_EQ(a[i].log_probability, b[i].log_probability);
    }
  }
  EXPECT_GT(all.results().front().labels.size(), 50u);
}

TEST(CtcBeamSearch, NoFramesAndWrongSizes) {
  const auto found = ctc_beam_search({}, 4, {});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].ids().empty());
  EXPECT_EQ(found[0].log_probability, 0);
  EXPECT_THROW(ctc_beam_search(std::vector<float>(7), 4, {}), Error);
  EXPECT_THROW(ctc_beam_search({}, 4, {.beam = 2, .best = 3}), Error);
}

TEST(TimedWords, SpacesDivideAndTimesAreOfTheirLabels) {
  const std::vector<std::string> pieces = {"a", " ", " he", "llo", "ß"};
  const std::vector<TimedLabel> labels = {{2, 1, 2}, {3, 4, 5},   {1, 7, 7},
                                          {0, 9, 9}, {4, 10, 12}, {2, 13, 14}};
  EXPECT_EQ(timed_words(labels, pieces),
            (std::vector<TimedWord>{{"hello", 1, 5}, {"aß", 9, 12}, {"he", 13, 14}}));
  EXPECT_TRUE(timed_words({}, pieces).empty());
  EXPECT_THROW(timed_words(std::vector<TimedLabel>{{5, 0, 0}}, pieces), Error);
}

}  // namespace
}  // namespace choir
