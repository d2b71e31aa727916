// Tests of the speech data that follow from the words of a deck.
#include "src/models/fastconformer/speech_data.hpp"
#include "src/models/fastconformer/speech_settings.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "src/models/fastconformer/evaluation.hpp"
#include "test/support/families.hpp"

namespace choir {
namespace {

Deck deck_of_data(const std::vector<std::string>& overrides = {}) {
  return parse_deck(test::families(),
                    R"({"model": {"type": "fastconformer"}, "train": {"micro_batches": 6}})",
                    "speech.json", overrides);
}

SpeechDataConfig data_config(const std::vector<std::string>& overrides) {
  const Deck deck = deck_of_data(overrides);
  const SpeechSection& data = speech_settings(deck).data;
  SpeechDataConfig config = speech_data_config(deck, speech_request(deck));
  config.train =
      blend_of(data.input_cfg, input_cfg_text(data.input_cfg), deck.data.train, data.temperature);
  config.order_seed =
      speech_order_seed(data.shard_seed, static_cast<std::uint64_t>(deck.run.seed), 1);
  return config;
}

std::string complaint_of_data(const std::vector<std::string>& overrides) {
  try {
    data_config(overrides);
  } catch (const DeckError& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return {};
}

void data_says(const std::vector<std::string>& overrides, const std::string& words) {
  const std::string text = complaint_of_data(overrides);
  EXPECT_NE(text.find(words), std::string::npos) << text;
}

TEST(SpeechDeck, KeysArriveInTheConfiguration) {
  const SpeechDataConfig c = data_config({"data.train=[\"a\",\"b\"]",
                                          "data.labels=bpe",
                                          "data.batch_duration=33",
                                          "data.quadratic_duration=15",
                                          "data.max_utterances=7",
                                          "data.buckets=5",
                                          "data.label_buckets=2",
                                          "data.pad_to_bucket=true",
                                          "data.window=99",
                                          "data.min_duration=0.5",
                                          "data.max_duration=9",
                                          "data.min_labels_per_second=1",
                                          "data.max_labels_per_second=20",
                                          "data.on_bad=skip",
                                          "data.reader=node",
                                          "data.prefetch=3",
                                          "data.shard_seed=12",
                                          "model.subsampling=4",
                                          "model.causal=true",
                                          "model.hop=80",
                                          "model.sample_rate=8000"});
  ASSERT_EQ(c.train.inputs.size(), 2u);
  EXPECT_EQ(c.train.inputs[1].folder, "b");
  EXPECT_EQ(c.labels, "bpe");
  EXPECT_EQ(c.batching.batch_duration, 33);
  EXPECT_EQ(c.batching.quadratic_duration, 15);
  EXPECT_EQ(c.batching.max_samples, 7);
  EXPECT_EQ(c.batching.buckets, 5);
  EXPECT_EQ(c.batching.label_buckets, 2);
  EXPECT_TRUE(c.batching.whole);
  EXPECT_EQ(c.window, 99);
  EXPECT_EQ(c.filter.min_duration, 0.5);
  EXPECT_EQ(c.filter.max_duration, 9);
  EXPECT_EQ(c.filter.min_labels_per_second, 1);
  EXPECT_EQ(c.filter.max_labels_per_second, 20);
  EXPECT_EQ(c.on_bad, OnBad::skip);
  EXPECT_EQ(c.reader.kind, ReaderKind::node);
  EXPECT_EQ(c.slots, 4);
  EXPECT_EQ(c.order_seed, 12u);
  EXPECT_EQ(c.sample_rate, 8000);
  EXPECT_EQ(c.frames.hop, 80);
  EXPECT_EQ(c.frames.stages, 2);
  EXPECT_TRUE(c.frames.causal);
}

TEST(SpeechDeck, OrderSeeds) {
  EXPECT_EQ(data_config({"data.train=a"}).order_seed, 1337u);
  EXPECT_EQ(data_config({"data.train=a", "run.seed=3"}).order_seed, 3u);
  EXPECT_EQ(data_config({"data.train=a", "data.shard_seed=0"}).order_seed, 0u);
  data_says({"data.shard_seed=often"}, "expected an integer");
}

TEST(SpeechDeck, Blends) {
  const SpeechDataConfig inside = data_config(
      {R"(data.input_cfg=[{"folder": "a", "weight": 2}, {"group": ["b", "c"], "weight": 1}])",
       "data.temperature=0.5"});
  ASSERT_EQ(inside.train.inputs.size(), 2u);
  EXPECT_EQ(inside.train.inputs[0].weight, 2);
  EXPECT_EQ(inside.train.inputs[1].group.size(), 2u);
  EXPECT_EQ(inside.train.temperature, std::vector<double>{0.5});
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("blend" + std::to_string(::getpid()) + ".json");
  std::ofstream(file) << R"({"inputs": ["a", "b"], "temperature": [0.25, 1]})";
  const SpeechDataConfig outside = data_config({"data.input_cfg=" + file.string()});
  EXPECT_EQ(outside.train.inputs.size(), 2u);
  EXPECT_EQ(outside.train.temperature, (std::vector<double>{0.25, 1}));
  std::filesystem::remove(file);
  // NeMo's recipes have their blends in YAML.
  const std::string yaml = file.string() + ".yaml";
  std::ofstream(yaml) << "- type: group\n  weight: 0.25\n  input_cfg:\n  - type: lhotse_shar\n"
                         "    shar_path: a\n- shar_path: b\n  weight: 3\n";
  const SpeechDataConfig nemo = data_config({"data.input_cfg=" + yaml});
  ASSERT_EQ(nemo.train.inputs.size(), 2u);
  EXPECT_EQ(nemo.train.inputs[0].weight, 0.25);
  EXPECT_EQ(nemo.train.inputs[1].weight, 3);
  std::ofstream(yaml) << "- shar_path: &a b\n";
  data_says({"data.input_cfg=" + yaml}, "line 1");
  std::filesystem::remove(yaml);
  data_says({"data.input_cfg=no/such/file.json"}, "no/such/file.json");
  data_says({R"(data.input_cfg=[{"folder": "a", "weight": 2}, "b"])"}, "have a weight");
  data_says({R"(data.input_cfg={"inputs": ["a"], "heat": 1})"}, "data.input_cfg.heat");
  data_says({"data.train=a", "data.temperature=0.5"}, "data.input_cfg, which is not given");
  data_says({"data.train=a", R"(data.input_cfg=["b"])"}, "both name the training data");
}

TEST(SpeechDeck, ValidationSets) {
  const SpeechDataConfig c =
      data_config({"data.train=a", "data.val=[\"x/val/\",\"x/other\"]",
                   "data.validation.voices=x/v1,x/v2 limit=20 batch_duration=30 max_duration=12"});
  ASSERT_EQ(c.eval.size(), 3u);
  EXPECT_EQ(c.eval[0].name, "val");
  EXPECT_EQ(c.eval[1].name, "other");
  EXPECT_EQ(c.eval[2].name, "voices");
  EXPECT_EQ(c.eval[2].folders, (std::vector<std::string>{"x/v1", "x/v2"}));
  EXPECT_EQ(c.eval[2].limit, 20);
  EXPECT_EQ(c.eval[2].batch_duration, 30);
  EXPECT_EQ(c.eval[2].filter.max_duration, 12);
  EXPECT_EQ(c.eval[2].filter.min_duration, 0);
  data_says({"data.validation.voices=x limits=20"}, "'limits=20' is not understood");
  data_says({"data.validation.voices=x limit=few"}, "'few' is not a number");
  data_says(
      {"data.validation.voices=x temperature=1"},
      "data.validation.voices: 'temperature' has no effect on this kind of model: no answers");
  data_says({"data.validation.voices=x dialogues=3"}, "no dialogues are held");
  data_says({"data.validation.voices=x min_duration=3 max_duration=2"},
            "min_duration=3 is above max_duration=2");
  data_says({"data.validation.voices=x,,y"}, "names no folder");
  data_says({"data.val=a/val,b/val"}, "two validation sets are called 'val'");
}

using Tags = std::map<std::string, std::string>;

TEST(SpeechDeck, TagsOfTrainingTravelWithTheirFolders) {
  const SpeechDataConfig c = data_config(
      {R"(data.input_cfg=[{"folder": "a", "tags": {"lang": "en"}}, {"tags": {"lang": "de",
          "rate": 8}, "group": ["b", {"folder": "c", "tags": {"lang": "nl"}}]}])"});
  const std::vector<SpeechLeaf> leaves = leaves_of(c.train);
  ASSERT_EQ(leaves.size(), 3u);
  EXPECT_EQ(leaves[0].tags, (Tags{{"lang", "en"}}));
  EXPECT_EQ(leaves[1].tags, (Tags{{"lang", "de"}, {"rate", "8"}}));
  EXPECT_EQ(leaves[2].tags, (Tags{{"lang", "nl"}, {"rate", "8"}}));
}

TEST(SpeechDeck, TagsOfValidation) {
  const SpeechDataConfig c = data_config(
      {"data.train=a", "data.validation.one=x/a,x/b tag.lang=en limit=3",
       R"(data.validation.two=[{"tags": {"lang": "de"}, "group": ["x/c", {"folder": "x/d",
           "tags": {"noise": "low"}}]}, "x/e"] batch_duration=30 tag.lang=nl)",
       R"(data.validation.zero=["x/f"])"});
  ASSERT_EQ(c.eval.size(), 3u);
  EXPECT_EQ(c.eval[0].tags, (std::vector<Tags>{{{"lang", "en"}}, {{"lang", "en"}}}));
  EXPECT_EQ(c.eval[0].limit, 3);
  EXPECT_EQ(c.eval[1].folders, (std::vector<std::string>{"x/c", "x/d", "x/e"}));
  EXPECT_EQ(
      c.eval[1].tags,
      (std::vector<Tags>{{{"lang", "de"}}, {{"lang", "de"}, {"noise", "low"}}, {{"lang", "nl"}}}));
  EXPECT_EQ(c.eval[1].batch_duration, 30);
  EXPECT_EQ(c.eval[2].folders, std::vector<std::string>{"x/f"});
  EXPECT_TRUE(c.eval[2].tags.empty());
  data_says({R"(data.validation.a=[{"folder": "x", "weight": 2}])"}, "has no weights");
  data_says({R"(data.validation.a=[{"folder": "x", "tags": {"lang": "en us"}}])"},
            "'en us' is not a valid name or value of a tag");
  data_says({"data.validation.a=x tag.=en"}, "'' is not a valid name or value of a tag");
  data_says({R"(data.validation.a=[{"folder": "x", "limit": 2}])"}, "write limit=N after");
  data_says({R"(data.validation.a=["x")"}, "data.validation.a:1");
}

TEST(SpeechDeck, Bins) {
  const SpeechDataConfig c =
      data_config({"data.train=a", R"(data.bucket_bins=["2.5","4:30","4:60"])",
                   R"(data.bucket_sizes=["9","5","4"])"});
  ASSERT_EQ(c.batching.bins.size(), 3u);
  EXPECT_EQ(c.batching.bins[0], (SpeechBin{2.5}));
  EXPECT_EQ(c.batching.bins[1], (SpeechBin{4, 30}));
  EXPECT_EQ(c.batching.sizes, (std::vector<std::int64_t>{9, 5, 4}));
  data_says({R"(data.bucket_bins=["long"])"}, "'long' is not a number");
  data_says({R"(data.bucket_bins=["1:2:3"])"}, "SECONDS:LABELS");
  data_says({R"(data.bucket_bins=["1"])", R"(data.bucket_sizes=["2","3"])"}, "2 numbers for 1");
}

TEST(SpeechDeck, KeysOfSpeechAreRefusedElsewhere) {
  for (const char* key : {"data.labels=x", "data.batch_duration=9", "data.on_bad=skip",
                          "data.validation.a=b", "data.window=5"})
    data_says({"model.type=gpt", "train.micro_batches=0", key},
              "is for model.type = \"fastconformer\"");
  data_says({"data.tokenizer=byte"}, "data.tokenizer is for model.type = \"gpt\"");
  data_says({"eval.batches=3"}, "eval.batches is for model.type = \"gpt\"");
  data_says({"data.format=text"}, "legal for speech: auto, synthetic");
  data_says({"data.min_duration=5", "data.max_duration=2"}, "is above data.max_duration");
}

TEST(SpeechDeck, ShapesThatOthersContainAreLeftOut) {
  const std::vector<BatchShape> kept =
      largest_shapes({{4, 100, 5}, {4, 100, 5}, {3, 100, 5}, {5, 90, 5}, {4, 100, 4}, {1, 1, 9}});
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0].samples, 4);
  EXPECT_EQ(kept[1].samples, 5);
  EXPECT_EQ(kept[2].labels, 9);
}

/// The sums of a set of one second of audio for each of `seconds`, at 100 Hz.
Scores speech_scores(const EditCounts& words, double loss = 0, std::int64_t targets = 1,
                     std::int64_t seconds = 0) {
  Scores scores;
  scores.losses = loss;
  scores.counters = {{kTargetsCounter, {targets}},
                     {"samples", {100 * seconds}},
                     {kComparedCounter, {words.utterances}},
                     {"words", words.integers()},
                     {"characters", EditCounts().integers()}};
  return scores;
}

std::vector<Validation> speech_validations(const std::vector<SetScores>& sets) {
  return validations_of({{"loss", 1}}, SpeechMeaning(100), sets);
}

TEST(SpeechScores, RatesAreOfTheWholeCorpus) {
  std::vector<SetScores> sets{{"a", speech_scores({0, 0, 1, 1, 1, 0}, 3, 2, 8)},
                              {"b", speech_scores({1, 0, 0, 8, 1, 0}, 1, 6, 2)}};
  sets[0].all.seconds = 1, sets[1].all.seconds = 4;
  const std::vector<Validation> list = speech_validations(sets);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_DOUBLE_EQ(list[0].loss, 0.5);
  EXPECT_EQ(list[0].metrics[0].first, "wer");
  EXPECT_DOUBLE_EQ(list[0].metrics[0].second, 0.2);  // 2 edits of 10 words, not (0.5 + 0.125) / 2
  EXPECT_DOUBLE_EQ(list[1].metrics[0].second, 0.5);
  EXPECT_EQ(list[0].sentences[0].second.find("loss 0.5000, WER 20.00 %"), 0U);
  EXPECT_NE(list[0].sentences[0].second.find("real-time factor 0.5"), std::string::npos);
}

TEST(SpeechScores, TagsHaveErrorRates) {
  SetScores set{"a", speech_scores({0, 0, 3, 7, 2, 0})};
  set.tags = {{"lang=de", speech_scores({0, 0, 2, 2, 1, 0})},
              {"lang=en", speech_scores({0, 0, 1, 5, 1, 0})}};
  const Validation v = speech_validations({set}).front();
  std::vector<std::string> names;
  for (const auto& [name, value] : v.metrics) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"wer", "cer", "wer/lang=de", "cer/lang=de",
                                             "wer/lang=en", "cer/lang=en"}));
  EXPECT_DOUBLE_EQ(v.metrics[2].second, 0.5);
  EXPECT_EQ(v.sentences[2].second.find("WER 16.67 %"), 0U) << v.sentences[2].second;
}

TEST(SpeechScores, EditsAreIntegers) {
  const EditCounts counts{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(EditCounts::of_integers(counts.integers()), counts);
}

TEST(SpeechScores, GreedyText) {
  const Vocabulary vocabulary = Vocabulary::characters({U'a', U'b', U'c', U' '});
  const auto id = [&](const char* letter) { return vocabulary.try_encode(letter).ids.front(); };
  const std::int32_t blank = 6;  // the model has room for two more
  const std::vector<std::int32_t> best{blank,   id("a"), id("a"), blank,
                                       id("a"), 5,       id("b"), id("b")};
  EXPECT_EQ(greedy_text(best, blank, vocabulary), "aab");
  EXPECT_EQ(greedy_text({}, blank, vocabulary), "");
}

}  // namespace
}  // namespace choir
