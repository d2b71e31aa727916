// Tests of batches of speech: each utterance of an epoch occurs once, buckets waste little,
// positions continue, and blends keep to their weights.
#include "src/data/sampling/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "test/support/count_allocations.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

constexpr int kRate = 16000;

// Log-normal durations around `median` seconds, in [1, 12], and about 14 letters per second.
std::vector<SpeechItem> corpus(std::int64_t count, int leaf = 0, double median = 2.6,
                               double spread = 0.45) {
  const PhiloxKey key = philox_key(11, "test.durations");
  std::vector<SpeechItem> items;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::uint64_t>(leaf * 1000000 + 2 * i);
    const double seconds = std::clamp(median * std::exp(spread * normal_at(key, at)), 1.0, 12.0);
    const double letters = seconds * (14 + 2 * normal_at(key, at + 1));
    items.push_back({leaf, static_cast<std::int32_t>(i), static_cast<std::int32_t>(seconds * kRate),
                     static_cast<std::int32_t>(std::max(1.0, letters))});
  }
  return items;
}

std::vector<SpeechLength> lengths_of(const std::vector<SpeechPoolItems>& pools) {
  std::vector<SpeechLength> lengths;
  for (const auto& pool : pools)
    for (const auto& item : pool.items)
      lengths.push_back(
          {item.samples, item.labels, pool.probability / static_cast<double>(pool.items.size())});
  return lengths;
}

SpeechSampler sampler_of(std::vector<SpeechPoolItems> pools, const SpeechBucketOptions& options,
                         std::int64_t window, std::uint64_t seed) {
  const auto lengths = lengths_of(pools);
  return {SpeechBlend(std::move(pools), seed), SpeechBuckets(options, kRate, lengths), window,
          seed};
}

std::vector<SpeechRow> sorted(std::vector<SpeechRow> rows) {
  const auto key = [](const SpeechRow& r) {
    return std::tuple(r.epoch, r.item.leaf, r.item.utterance);
  };
  std::sort(rows.begin(), rows.end(), [&](auto& a, auto& b) { return key(a) < key(b); });
  return rows;
}

// For any window, seed and number of steps, `epochs` whole epochs have every utterance `epochs`
// times.
TEST(SpeechSampler, AnEpochHasEveryUtteranceOnce) {
  const std::int64_t n = 120;
  for (const std::uint64_t seed : {0ull, 7ull, 123456789ull}) {
    for (const std::int64_t window : {1, 7, 60, 120, 500}) {
      SpeechBucketOptions options;
      options.batch_duration = 20;
      options.buckets = 3;
      const auto sampler = sampler_of({{corpus(n), 1}}, options, window, seed);
      std::vector<SpeechRow> drawn;
      SpeechWindow plan;
      SpeechCursor at = sampler.begin();
      // The windows are whole, and so are the epochs.
      const std::int64_t windows = 3 * n / std::gcd(n, window);
      for (std::int64_t w = 0; w < windows; ++w) {
        sampler.plan(w, at.drawn, plan);
        at.drawn = plan.drawn;
        for (std::size_t j = 0; j < plan.parts.size(); ++j) {
          const auto part = plan.part(static_cast<std::int64_t>(j));
          drawn.insert(drawn.end(), part.begin(), part.end());
        }
      }
      ASSERT_EQ(std::ssize(drawn), windows * window);
      drawn = sorted(drawn);
      for (std::size_t i = 0; i < drawn.size(); ++i) {
        ASSERT_EQ(drawn[i].epoch, static_cast<std::int64_t>(i) / n);
        ASSERT_EQ(drawn[i].item.utterance, static_cast<std::int64_t>(i) % n);
      }
    }
  }
}

TEST(SpeechSampler, EpochsAndSeedsHaveOtherOrders) {
  const SpeechBlend a({{corpus(50), 1}}, 1), b({{corpus(50), 1}}, 2);
  int same_epoch = 0, same_seed = 0;
  for (std::int64_t k = 0; k < 50; ++k) {
    same_epoch += a.row(0, k).item == a.row(0, k + 50).item;
    same_seed += a.row(0, k).item == b.row(0, k).item;
  }
  EXPECT_LT(same_epoch, 10);  // one on average
  EXPECT_LT(same_seed, 10);
  EXPECT_NE(a.hash(), b.hash());
  EXPECT_EQ(a.hash(), SpeechBlend({{corpus(50), 1}}, 1).hash());
}

// The rule for a micro-batch, as a formula.
TEST(SpeechSampler, MicroBatchesKeepToTheirLimitsAndToOneBucket) {
  for (const double quadratic : {0.0, 15.0}) {
    for (const std::int64_t label_buckets : {1, 3}) {
      SpeechBucketOptions options;
      options.batch_duration = 40;
      options.quadratic_duration = quadratic;
      options.max_samples = 17;
      options.buckets = 4;
      options.label_buckets = label_buckets;
      const auto items = corpus(3000);
      const auto sampler = sampler_of({{items, 1}}, options, 1000, 5);
      EXPECT_EQ(sampler.buckets().count(), 4 * label_buckets);
      const auto shapes = sampler.buckets().shapes(lengths_of({{items, 1}}), {});
      SpeechSteps steps(sampler, sampler.begin(), 8);
      SpeechStep step;
      std::size_t full = 0, all = 0;
      for (int s = 0; s < 30; ++s) {
        steps.next(step);
        ASSERT_EQ(step.micro_batches(), 8);
        for (std::int64_t j = 0; j < 8; ++j) {
          const auto rows = step.micro_batch(j);
          ASSERT_FALSE(rows.empty());
          std::set<int> buckets;
          std::int64_t longest = 0, labels = 0;
          for (const auto& row : rows) {
            buckets.insert(sampler.buckets().of(row.item.samples, row.item.labels));
            longest = std::max<std::int64_t>(longest, row.item.samples);
            labels = std::max<std::int64_t>(labels, row.item.labels);
          }
          EXPECT_EQ(buckets.size(), 1u);
          const double d = static_cast<double>(longest) / kRate;
          const double effective = quadratic > 0 ? d + d * d / quadratic : d;
          const auto n = static_cast<double>(rows.size());
          EXPECT_LE(n * effective, 40.0);
          EXPECT_LE(rows.size(), 17u);
          full += rows.size() == 17 || (n + 1) * effective > 0.9 * 40;
          ++all;
          const std::int64_t padded = SpeechFrames{}.padded(longest);
          EXPECT_TRUE(std::any_of(shapes.begin(), shapes.end(),
                                  [&](const SpeechShape& shape) {
                                    return shape.utterances >= std::ssize(rows) &&
                                           shape.samples >= padded && shape.labels >= labels;
                                  }))
              << rows.size() << " x " << padded;
        }
      }
      EXPECT_GT(full, all * 6 / 10);
    }
  }
}

// Shapes are reached and are not merely bounds: for each shape some set of utterances needs it, up
// to a sixteenth of B.
TEST(SpeechBuckets, ShapesAreTight) {
  SpeechBucketOptions options;
  options.batch_duration = 60;
  options.quadratic_duration = 20;
  const auto items = corpus(2000);
  const auto lengths = lengths_of({{items, 1}});
  const SpeechBuckets buckets(options, kRate, lengths);
  const auto shapes = buckets.shapes(lengths, {});
  EXPECT_GE(shapes.size(), 8u);
  EXPECT_LE(shapes.size(), 80u);
  for (const SpeechShape& shape : shapes) {
    // The shortest utterance that is padded to S.
    const std::int64_t samples = shape.samples - SpeechFrames{}.multiple() + 1;
    EXPECT_LE(static_cast<double>(shape.utterances) * buckets.effective(samples), 60 * 1.13);
    EXPECT_GE(static_cast<double>(shape.utterances + 1) * buckets.effective(shape.samples), 60.0);
  }
}

TEST(SpeechBuckets, WholeOnesHaveOneShape) {
  const auto items = corpus(3000);
  SpeechBucketOptions options{.batch_duration = 40, .quadratic_duration = 20, .buckets = 6};
  options.whole = true;
  const std::vector<SpeechPoolItems> pools{{items, 1.0}};
  const SpeechFrames frames;
  const SpeechSampler sampler = sampler_of(pools, options, 500, 3);
  const std::vector<SpeechShape> shapes = sampler.buckets().shapes(lengths_of(pools), frames);
  EXPECT_EQ(std::ssize(shapes), sampler.buckets().count());
  SpeechSteps steps(sampler, sampler.begin(), 4);
  SpeechStep step;
  std::map<int, std::set<std::int64_t>> counts;  // of utterances, by bucket
  for (int s = 0; s < 40; ++s) {
    steps.next(step);
    for (std::int64_t j = 0; j < step.micro_batches(); ++j) {
      const auto rows = step.micro_batch(j);
      const int bucket = sampler.buckets().of(rows.front().item.samples, rows.front().item.labels);
      const SpeechShape& shape = shapes[static_cast<std::size_t>(bucket)];
      counts[bucket].insert(std::ssize(rows));
      EXPECT_LE(std::ssize(rows), shape.utterances);
      EXPECT_LE(static_cast<double>(shape.utterances) * sampler.buckets().effective(shape.samples),
                1.05 * options.batch_duration)
          << "but for the frames that fill it";
    }
  }
  // All batches are full except the last ones of a window.
  for (const auto& [bucket, seen] : counts)
    EXPECT_EQ(*seen.rbegin(), shapes[static_cast<std::size_t>(bucket)].utterances);
  options.whole = false;
  EXPECT_NE(sampler.hash(), sampler_of(pools, options, 500, 3).hash()) << "other micro-batches";
}

TEST(SpeechBuckets, EstimatedOnesHoldEqualDurations) {
  const auto items = corpus(20000);
  SpeechBucketOptions options;
  options.buckets = 6;
  options.label_buckets = 2;
  const SpeechBuckets buckets(options, kRate, lengths_of({{items, 1}}));
  ASSERT_EQ(buckets.count(), 12);
  std::vector<double> seconds(12, 0.0);
  double total = 0;
  for (const auto& item : items) {
    const double d = static_cast<double>(item.samples) / kRate;
    seconds[static_cast<std::size_t>(buckets.of(item.samples, item.labels))] += d;
    total += d;
  }
  for (int b = 0; b < 6; ++b) {
    const double both =
        seconds[static_cast<std::size_t>(2 * b)] + seconds[static_cast<std::size_t>(2 * b + 1)];
    EXPECT_NEAR(both / total, 1.0 / 6, 0.01) << b;
    // Labels are integers with many ties: parts of a part are less even.
    EXPECT_NEAR(seconds[static_cast<std::size_t>(2 * b)] / both, 0.5, 0.06) << b;
  }
}

TEST(SpeechBuckets, GivenOnesAreStrict) {
  SpeechBucketOptions options;
  options.bins = {{2, 20}, {2, 40}, {4, 50}, {4, 80}};
  options.batch_duration = 100;
  const SpeechLength one{kRate, 1, 1};
  const SpeechBuckets buckets(options, kRate, {&one, 1});
  EXPECT_EQ(buckets.of(2 * kRate, 20), 0);
  EXPECT_EQ(buckets.of(2 * kRate, 21), 1);
  EXPECT_EQ(buckets.of(2 * kRate, 99), 1);
  EXPECT_EQ(buckets.of(2 * kRate + 1, 20), 2);
  EXPECT_EQ(buckets.of(4 * kRate, 51), 3);
  EXPECT_EQ(buckets.of(9 * kRate, 1), 2);  // the last duration includes all longer ones
  EXPECT_EQ(buckets.of(9 * kRate, 99), 3);
  EXPECT_DOUBLE_EQ(buckets.effective(2 * kRate), 2);
  EXPECT_EQ(buckets.limit(0, 2 * kRate), 50);
}

std::string deck_error_of(const SpeechBucketOptions& options, std::int64_t longest) {
  const SpeechLength one{longest, 1, 1};
  try {
    const SpeechBuckets buckets(options, kRate, {&one, 1});
  } catch (const DeckError& error) {
    return std::string(error.what()) + " / " + error.hint();
  }
  return "";
}

TEST(SpeechBuckets, WhatCannotBeIsRefusedWithTheNearestLegal) {
  SpeechBucketOptions options;
  options.batch_duration = 30;
  options.quadratic_duration = 20;
  EXPECT_EQ(deck_error_of(options, 10 * kRate), "");
  // 20 + 400 / 20 = 40
  EXPECT_NE(deck_error_of(options, 20 * kRate).find("set data.batch_duration to 40 or more"),
            std::string::npos);
  options.bins = {{4}, {3}};
  EXPECT_NE(deck_error_of(options, kRate).find("bucket 2 ends at 3 s"), std::string::npos);
  options.bins = {{3}, {4}};
  options.sizes = {5};
  EXPECT_NE(deck_error_of(options, kRate).find("1 batch sizes for 2 buckets"), std::string::npos);
  options.sizes = {5, 2};
  EXPECT_EQ(deck_error_of(options, 4 * kRate), "");
  EXPECT_NE(deck_error_of(options, 5 * kRate).find("the last bucket ends at 4 s"),
            std::string::npos);
  options = {};
  options.batch_duration = 0;
  EXPECT_NE(deck_error_of(options, kRate).find("data.batch_duration is 0"), std::string::npos);
}

TEST(SpeechBuckets, SizesOfTheTunerBindToo) {
  SpeechBucketOptions options;
  options.batch_duration = 1000;
  options.bins = {{2}, {12}};
  options.sizes = {9, 4};
  const auto items = corpus(500);
  const auto sampler = sampler_of({{items, 1}}, options, 500, 5);
  SpeechWindow window;
  sampler.plan(0, sampler.begin().drawn, window);
  std::map<int, std::int64_t> largest;
  for (std::int64_t j = 0; j < std::ssize(window.parts); ++j) {
    const auto rows = window.part(j);
    auto& most = largest[sampler.buckets().of(rows[0].item.samples, rows[0].item.labels)];
    most = std::max<std::int64_t>(most, std::ssize(rows));
  }
  EXPECT_EQ(largest, (std::map<int, std::int64_t>{{0, 9}, {1, 4}}));
}

bool same(const SpeechStep& a, const SpeechStep& b) {
  return a.rows == b.rows && a.begins == b.begins && a.after == b.after && a.targets == b.targets;
}

// A cursor, saved as integers, continues bit for bit; a step number alone does, too.
TEST(SpeechSampler, ResumingIsContinuing) {
  SpeechBucketOptions options;
  options.batch_duration = 12;
  options.buckets = 4;
  for (const std::int64_t window : {13, 200}) {
    const auto sampler =
        sampler_of({{corpus(90, 0), 0.7}, {corpus(31, 1), 0.3}}, options, window, 3);
    for (const std::int64_t per_step : {1, 4, 9}) {
      SpeechSteps whole(sampler, sampler.begin(), per_step);
      SpeechStep expected, found;
      SpeechCursor at = sampler.begin();
      for (std::int64_t s = 0; s < 40; ++s) {
        const auto integers = at.to_integers();
        SpeechSteps resumed(sampler, SpeechCursor::of_integers(integers, 2), per_step);
        SpeechSteps sought(sampler, seek_step(sampler, s, per_step), per_step);
        whole.next(expected);
        resumed.next(found);
        ASSERT_TRUE(same(expected, found)) << s;
        sought.next(found);
        ASSERT_TRUE(same(expected, found)) << s;
        at = expected.after;
      }
    }
  }
}

// The sequence of micro-batches does not depend on their number per step.
TEST(SpeechSampler, StepsAreCutFromOneRowOfMicroBatches) {
  SpeechBucketOptions options;
  options.batch_duration = 10;
  const auto sampler = sampler_of({{corpus(77), 1}}, options, 50, 8);
  SpeechSteps ones(sampler, sampler.begin(), 1), twelves(sampler, sampler.begin(), 12);
  SpeechStep one, twelve;
  for (int s = 0; s < 10; ++s) {
    twelves.next(twelve);
    std::int64_t targets = 0;
    for (std::int64_t j = 0; j < 12; ++j) {
      ones.next(one);
      const auto a = one.micro_batch(0), b = twelve.micro_batch(j);
      ASSERT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
      targets += one.targets;
    }
    EXPECT_EQ(targets, twelve.targets);
  }
}

TEST(SpeechSampler, PositionsOfOtherDataAreRefused) {
  SpeechBucketOptions options;
  const auto sampler = sampler_of({{corpus(77), 1}}, options, 50, 8);
  const std::vector<std::int64_t> two_pools{0, 0, 1, 2}, negative{0, -1, 5};
  EXPECT_DATA_ERROR(SpeechCursor::of_integers(two_pools, 1), "has 4 integers; 3 from 0 to");
  EXPECT_DATA_ERROR(SpeechCursor::of_integers(negative, 1), "integers");
  const std::vector<std::int64_t> far{std::int64_t{1} << 62, 0, 5};  // its product would overflow
  EXPECT_DATA_ERROR(SpeechCursor::of_integers(far, 1), "integers");
  EXPECT_DATA_ERROR(SpeechSteps(sampler, {0, 1000, {0}}, 4), "1000 were used");
  options.batch_duration = 61;
  EXPECT_NE(sampler_of({{corpus(77), 1}}, options, 50, 8).hash(), sampler.hash());
  EXPECT_NE(sampler_of({{corpus(77), 1}}, {}, 51, 8).hash(), sampler.hash());
  EXPECT_EQ(sampler_of({{corpus(77), 1}}, {}, 50, 8).hash(), sampler.hash());
}

// A corpus like that of the tutorial: 4 hours of clauses of 1 to 6 seconds, 60 s per micro-batch.
TEST(SpeechSampler, PaddingIsBelowATenth) {
  SpeechBucketOptions options;
  options.batch_duration = 60;
  options.quadratic_duration = 15;
  const auto sampler = sampler_of({{corpus(5000), 1}}, options, 4000, 1);
  const SpeechPadding padding = measure_padding(sampler, {});
  EXPECT_LT(padding.bucketed, 0.10);
  EXPECT_GT(padding.naive, 0.40);
  EXPECT_NEAR(static_cast<double>(padding.micro_batches),
              static_cast<double>(padding.naive_micro_batches), 3);
  RecordProperty("padding", std::to_string(padding.bucketed));
}

// Frequencies converge as 1 / sqrt(draws): 4 standard deviations.
TEST(SpeechBlend, KeepsToItsWeights) {
  const double weights[] = {0.5, 0.3, 0.15, 0.05};
  std::vector<SpeechPoolItems> pools;
  for (int p = 0; p < 4; ++p) pools.push_back({corpus(10 + p, p), weights[p]});
  const SpeechBlend blend(pools, 21);
  constexpr std::int64_t kDraws = 40000;
  std::vector<std::int64_t> counts(4, 0);
  for (std::int64_t i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(blend.pool_of(i))];
  for (std::size_t p = 0; p < 4; ++p) {
    const double deviation = std::sqrt(weights[p] * (1 - weights[p]) / kDraws);
    EXPECT_NEAR(static_cast<double>(counts[p]) / kDraws, weights[p], 4 * deviation);
  }
}

// Every source is endless and has its own epochs, in each of which every utterance occurs once.
TEST(SpeechBlend, SourcesHaveTheirOwnEpochs) {
  SpeechBucketOptions options;
  options.batch_duration = 15;
  const auto sampler = sampler_of({{corpus(40, 0), 0.9}, {corpus(7, 1), 0.1}}, options, 400, 4);
  SpeechWindow window;
  sampler.plan(0, sampler.begin().drawn, window);
  std::map<std::tuple<int, std::int64_t, int>, int> seen;
  for (std::size_t i = 0; i < 400; ++i) {
    const SpeechRow& row = window.rows[i];
    ++seen[{row.item.leaf, row.epoch, row.item.utterance}];
  }
  for (const auto& [which, times] : seen) EXPECT_EQ(times, 1);
  EXPECT_EQ(std::ssize(seen), 400);
  EXPECT_EQ(window.drawn[0] + window.drawn[1], 400);
  const std::int64_t sizes[] = {40, 7};
  for (int leaf = 0; leaf < 2; ++leaf)  // whole epochs except the last
    for (std::int64_t epoch = 0; epoch < window.drawn[static_cast<std::size_t>(leaf)] / sizes[leaf];
         ++epoch)
      for (int u = 0; u < sizes[leaf]; ++u)
        EXPECT_EQ((seen.count({leaf, epoch, u})), 1u) << leaf << " " << epoch << " " << u;
}

TEST(SpeechSampler, StepsAllocateNothing) {
  SpeechBucketOptions options;
  options.batch_duration = 30;
  const auto sampler = sampler_of({{corpus(900), 1}}, options, 300, 8);
  SpeechSteps steps(sampler, sampler.begin(), 16);
  SpeechStep step;
  for (int s = 0; s < 20; ++s) steps.next(step);
  const std::int64_t before = test::allocations();
  for (int s = 0; s < 10; ++s) steps.next(step);
  EXPECT_EQ(test::allocations(), before);
}

TEST(SpeechOrderSeed, OfTheRunAnIntegerOrOneForEveryAttempt) {
  EXPECT_EQ(speech_order_seed("", 5, 1), 5u);
  EXPECT_EQ(speech_order_seed("42", 5, 1), 42u);
  const auto first = speech_order_seed("randomized", 5, 0);
  EXPECT_NE(first, speech_order_seed("randomized", 5, 1));
  EXPECT_NE(first, speech_order_seed("randomized", 6, 0));
  EXPECT_EQ(first, speech_order_seed("randomized", 5, 0));
  for (const char* bad : {"trng", "-1", "4x"})
    EXPECT_THROW(speech_order_seed(bad, 5, 0), DeckError) << bad;
}

}  // namespace
}  // namespace choir
