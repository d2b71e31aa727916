#include "src/models/fastconformer/bucket_tuner.hpp"
#include "src/models/fastconformer/speech_settings.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "src/lab/plan/layout_plan.hpp"
#include "test/support/families.hpp"
#include "test/unit/lab/plan/plan_case.hpp"

namespace choir {
namespace {

using test::memory_of;

constexpr int kRate = 16000;

DeckVariants decks(std::vector<std::string> overrides = {}) {
  return DeckVariants(test::families(), R"({
    // Small.
    "model": {"type": "fastconformer", "n_layer": 2, "n_embd": 16, "n_head": 2, "subsampling": 4,
              "subsampling_channels": 4, "mels": 16, "freq_masks": 0, "vocab_size": 20},
    "data": {"train": ["nowhere"], "batch_duration": 10},
    "train": {"micro_batches": 4, "max_steps": 10}
  })",
                      "speech_case.json", std::move(overrides));
}

PlanCase request_of(const DeckVariants& variants, double memory, int ranks = 1) {
  return test::plan_case(variants, ranks, ranks, memory);
}

std::vector<UntunedBucket> two_buckets() {
  UntunedBucket shorter{.bin = {1.0}, .samples = 16000, .labels = 10, .most = 5000};
  UntunedBucket longer{
      .bin = {4.0}, .from_seconds = 1.0, .samples = 64000, .labels = 40, .most = 5000};
  shorter.most_reason = longer.most_reason = "data.window";
  return {shorter, longer};
}

double planned(PlanCase request, const UntunedBucket& bucket, std::int64_t batch) {
  request.shapes = {{.samples = batch, .audio_samples = bucket.samples, .labels = bucket.labels}};
  return plan_layout(request).needs();
}

TEST(BucketTuner, OneMoreIsAboveTheLimit) {
  const DeckVariants variants = decks();
  const PlanCase request = request_of(variants, 20e6);
  const std::vector<TunedBucket> tuned = tune_buckets(request, two_buckets());
  ASSERT_EQ(tuned.size(), 2u);
  for (const TunedBucket& t : tuned) {
    EXPECT_EQ(t.limited_by, "memory");
    EXPECT_EQ(t.bytes, planned(request, t.bucket, t.batch));
    EXPECT_LE(t.bytes, 20e6);
    EXPECT_EQ(t.next_bytes, planned(request, t.bucket, t.batch + 1));
    EXPECT_GT(t.next_bytes, 20e6);
  }
  EXPECT_GT(tuned[0].batch, 3 * tuned[1].batch);  // a fourth of the length
}

TEST(BucketTuner, OtherBoundsAreNamed) {
  std::vector<UntunedBucket> buckets = two_buckets();
  buckets[0].most = 7;
  buckets[0].most_reason = "data.max_utterances";
  const std::vector<TunedBucket> tuned = tune_buckets(request_of(decks(), 20e6), buckets);
  EXPECT_EQ(tuned[0].batch, 7);
  EXPECT_EQ(tuned[0].limited_by, "data.max_utterances");
  EXPECT_EQ(tuned[0].next_bytes, 0);
  EXPECT_EQ(tuned[1].limited_by, "memory");
  const std::string table = to_string(tuned, 20e6);
  EXPECT_NE(table.find("data.max_utterances"), std::string::npos) << table;
  EXPECT_NE(table.find("limit 19.1 MiB a rank"), std::string::npos) << table;
}

TEST(BucketTuner, AMixtureInAPipelineFitsToo) {
  const DeckVariants variants = decks({"parallel.pipeline=2"});
  PlanCase request = request_of(variants, 20e6, 2);
  const std::vector<TunedBucket> tuned = tune_buckets(request, two_buckets());
  for (const TunedBucket& t : tuned)
    request.shapes.push_back(
        {.samples = t.batch, .audio_samples = t.bucket.samples, .labels = t.bucket.labels});
  EXPECT_TRUE(plan_layout(request).fits());
  EXPECT_GT(memory_of(plan_layout(request)), 0.7 * 20e6);
}

std::string complaint_of_memory(double memory) {
  try {
    tune_buckets(request_of(decks(), memory), two_buckets());
  } catch (const DeckError& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return {};
}

TEST(BucketTuner, TooLittleMemoryIsToldWithNumbers) {
  const std::string tiny = complaint_of_memory(1e4);
  EXPECT_NE(tiny.find("the parameters alone, "), std::string::npos) << tiny;
  EXPECT_NE(tiny.find("above the limit of 9.8 KiB"), std::string::npos) << tiny;
  // The memory is enough for an utterance of one second, but not for one of four.
  const std::vector<UntunedBucket> buckets = two_buckets();
  const double between = planned(request_of(decks(), 1e9), buckets[0], 1);
  const std::string one = complaint_of_memory(between);
  EXPECT_NE(one.find("one utterance of the bucket of 1.00 to 4.00 s needs "), std::string::npos)
      << one;
  EXPECT_NE(one.find("data.max_duration"), std::string::npos) << one;
}

TEST(BucketTuner, ChangesMakeALegalDeckThatAllowsTheBatches) {
  const DeckVariants variants = decks({"data.quadratic_duration=20"});
  std::vector<UntunedBucket> buckets = two_buckets();
  buckets[1].bin.labels = 40;
  const std::vector<TunedBucket> tuned{{.bucket = buckets[0], .batch = 9},
                                       {.bucket = buckets[1], .batch = 3}};
  const Deck deck = variants.with(changes_of(tuned, variants.with({}), kRate));
  EXPECT_EQ(speech_settings(deck).data.bucket_bins, (std::vector<std::string>{"1", "4:40"}));
  EXPECT_EQ(speech_settings(deck).data.bucket_sizes, (std::vector<std::string>{"9", "3"}));
  EXPECT_EQ(speech_settings(deck).data.batch_duration,
            15);  // 3 (4 + 16 / 20) = 14.4; 9 (1 + 1 / 20) = 9.45
  const SpeechBuckets made({.batch_duration = speech_settings(deck).data.batch_duration,
                            .quadratic_duration = 20,
                            .bins = {{1}, {4, 40}},
                            .sizes = {9, 3}},
                           kRate, std::vector<SpeechLength>{{64000, 40}, {16000, 2}});
  EXPECT_EQ(made.limit(0, 16000), 9);
  EXPECT_EQ(made.limit(1, 64000), 3);

  const std::string text = R"({"data": {"train": ["nowhere"] /* here */}, "model":
      {"type": "fastconformer", "vocab_size": 20}, "train": {"micro_batches": 4}})";
  const DeckVariants again(test::families(), text, "a.json",
                           {"data.quadratic_duration=20", "data.hints.x=y"});
  const std::string written =
      written_deck(text, again.with(changes_of(tuned, again.with({}), kRate)));
  EXPECT_LT(written.find("\"data\""), written.find("\"model\""));
  const Deck read = parse_deck(test::families(), written, "b.json", {});
  EXPECT_EQ(speech_settings(read).data.bucket_bins, (std::vector<std::string>{"1", "4:40"}));
  EXPECT_EQ(speech_settings(read).data.quadratic_duration, 20);
  EXPECT_EQ(read.data.hints, (TextMap{{"x", "y"}}));
  EXPECT_EQ(read.data.train, std::vector<std::string>{"nowhere"});
  EXPECT_EQ(written.find("sources"), std::string::npos);
}

// 30 of one second, 10 of two with 5 labels, one of 5 s, beyond the last bin.
SpeechSampler sampler(std::int64_t window) {
  SpeechPoolItems pool;
  std::vector<SpeechLength> lengths;
  const auto add = [&](int count, std::int32_t samples, std::int32_t labels) {
    for (int i = 0; i < count; ++i) {
      pool.items.push_back({0, static_cast<std::int32_t>(pool.items.size()), samples, labels});
      lengths.push_back({samples, labels});
    }
  };
  add(30, kRate, 3), add(10, 2 * kRate, 5), add(1, 5 * kRate, 9);
  SpeechBuckets buckets({.batch_duration = 8, .bins = {{1}, {2, 5}, {2, 7}}}, kRate, lengths);
  return {SpeechBlend({pool}, 1), std::move(buckets), window, 1};
}

TEST(BucketTuner, BucketsOfASampler) {
  const SpeechFrames frames;
  const std::vector<UntunedBucket> list = buckets_of(sampler(41), frames, kRate, 0);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0].bin, (SpeechBin{1}));
  EXPECT_EQ(list[0].samples, frames.padded(kRate));
  EXPECT_EQ(list[0].labels, 3);
  EXPECT_EQ(list[0].batch, 8);
  EXPECT_EQ(list[0].utterances, 30);
  EXPECT_EQ(list[0].most, 41);  // 30 + 3 sqrt(30) > 41
  EXPECT_EQ(list[1].most, 20);  // 10 + 3 sqrt(10) = 19.5
  EXPECT_EQ(list[1].most_reason, "data.window");
  EXPECT_EQ(list[1].bin, (SpeechBin{5, 5}));  // now the longest has a bin
  EXPECT_EQ(list[2].bin, (SpeechBin{5, 7}));
  EXPECT_EQ(list[2].samples, frames.padded(5 * kRate));
  EXPECT_EQ(list[2].labels, 9);
  EXPECT_EQ(list[2].from_seconds, 1);
  EXPECT_EQ(buckets_of(sampler(41), frames, kRate, 6)[1].most, 6);
  EXPECT_EQ(buckets_of(sampler(41), frames, kRate, 6)[1].most_reason, "data.max_utterances");
  EXPECT_DOUBLE_EQ(mean_seconds(sampler(41), kRate), (30 * 1 + 10 * 2 + 5) / 41.0);
}

}  // namespace
}  // namespace choir
