#include "src/models/fastconformer/speech_settings.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "src/core/text.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/models/fastconformer/family.hpp"

namespace choir {
namespace {

constexpr EvalWords kSpeechEvalWords{.durations = true, .batch_duration = true, .tags = true};

/// The whole word as a number that is at least 0.
template <class Number>
Number number_of(std::string_view word, const std::string& what) {
  Number number{};
  const auto [stop, problem] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (problem != std::errc() || stop != word.data() + word.size() || !(number >= 0))
    throw DeckError(fmt::format("{}: '{}' is not a number of at least 0", what, word));
  return number;
}

SpeechBucketOptions batching_of(const SpeechSection& speech) {
  SpeechBucketOptions options;
  options.batch_duration = speech.batch_duration;
  options.quadratic_duration = speech.quadratic_duration;
  options.max_samples = speech.max_utterances;
  options.buckets = speech.buckets;
  options.label_buckets = speech.label_buckets;
  options.whole = speech.pad_to_bucket;
  for (const std::string& word : speech.bucket_bins) options.bins.push_back(bucket_bin_of(word));
  for (const std::string& word : speech.bucket_sizes) options.sizes.push_back(bucket_size_of(word));
  return options;
}

}  // namespace

SpeechBin bucket_bin_of(const std::string& word) {
  const std::vector<std::string> parts = split(word, ':');
  if (parts.size() > 2)
    throw DeckError(fmt::format("data.bucket_bins: '{}' is not SECONDS or SECONDS:LABELS", word));
  SpeechBin bin;
  bin.seconds = number_of<double>(parts.empty() ? "" : parts[0], "data.bucket_bins");
  if (parts.size() == 2) bin.labels = number_of<std::int64_t>(parts[1], "data.bucket_bins");
  return bin;
}

std::int64_t bucket_size_of(const std::string& word) {
  return number_of<std::int64_t>(word, "data.bucket_sizes");
}

SpeechRequest speech_request(const Deck& deck) {
  const FastConformerConfig& model = speech_of(deck);
  return {.data = &speech_settings(deck).data,
          .sample_rate = static_cast<int>(model.mel.sample_rate),
          .vocab_size = model.vocab_size,
          .frames = model.speech_frames()};
}

SpeechDataConfig speech_data_config(const Deck& deck, const SpeechRequest& request) {
  const DataSection& d = deck.data;
  const SpeechSection& s = *request.data;
  SpeechDataConfig config;
  config.eval = eval_sets_of(d.val, s.validation, kSpeechEvalWords);
  config.labels = s.labels;
  config.sample_rate = request.sample_rate;
  config.vocab_size = request.vocab_size;
  config.frames = request.frames;
  config.filter = {.min_duration = s.min_duration,
                   .max_duration = s.max_duration,
                   .min_labels_per_second = s.min_labels_per_second,
                   .max_labels_per_second = s.max_labels_per_second};
  config.on_bad = on_bad_of(s.on_bad, "data.on_bad");
  config.bad_cap = s.bad_cap;
  config.batching = batching_of(s);
  config.window = s.window;
  config.reader.kind = d.reader;
  config.reader.preload = d.preload;
  config.reader.hints = d.hints;
  config.reader.group_ranks = d.readers_every;
  config.slots = d.prefetch + 1;
  return config;
}

namespace {

using Part = SpeechSection;
using DataTable = KeyTable<Part>;
using DataKeys = DataTable::Section<Part>;

void add_sources(DataKeys& data) {
  data.add("labels", &Part::labels, "",
           "Units of the texts, which a recogniser emits (speech models): char for the characters "
           "of the training texts, the default because it fits any amount of data; bpe_N or "
           "unigram_N, for example bpe_256, for N pieces of words, which need fewer frames; or the "
           "NAME of labels.NAME.bin and tokenizer.NAME.json, which `choir prepare tokens` writes "
           "into every folder. Codecs need labels (else \"\") only to select or sort utterances.")
      .when_resumed(OnResume::same_contents);
  data.add("channel", &Part::channel, "",
           "Channel of recordings with several in the manifests of data.train and data.val, where "
           "their lines have no \"channel\": average, or a number from 0 (speech models).")
      .checked("average, or a number from 0", [](const KeyValue& value) -> std::string {
        try {
          channel_choice_of(std::get<std::string>(value));
        } catch (const DeckError& error) {
          return error.what();
        }
        return {};
      });
  data.add("on_bad", &Part::on_bad, "",
           "Treatment of utterances that are damaged, or cannot be spelled in the vocabulary or by "
           "CTC (speech models): stop, or skip up to data.bad_cap of all.")
      .when_resumed(OnResume::same_contents)
      .one_of({"stop", "skip"});
  data.add("bad_cap", &Part::bad_cap, "",
           "Largest fraction of utterances that data.on_bad = \"skip\" leaves out (speech models).")
      .when_resumed(OnResume::same_contents)
      .at_least(0)
      .at_most(1)
      .only_with("data.on_bad", {"skip"});
}

void add_batches(DataKeys& data) {
  data.add("batch_duration", &Part::batch_duration, "s",
           "Largest duration of a micro-batch, padding included (speech models).")
      .above(0);
  data.add("quadratic_duration", &Part::quadratic_duration, "s",
           "Penalty q of long utterances: d seconds count as d + d^2 / q (speech models). 0: none.")
      .at_least(0);
  data.add("max_utterances", &Part::max_utterances, "utterances",
           "Largest number of utterances in a micro-batch (speech models). 0: no limit.")
      .at_least(0);
  data.add("buckets", &Part::buckets, "",
           "Number of duration buckets, each with an equal share of the audio (speech models). A "
           "micro-batch has utterances of one bucket.")
      .at_least(1)
      .at_most(1024)
      .not_with("data.format", {"synthetic"});
  data.add("label_buckets", &Part::label_buckets, "",
           "Number of parts of each bucket by the number of labels (speech models).")
      .at_least(1)
      .at_most(64)
      .not_with("data.format", {"synthetic"});
  const auto list_of = [](auto read) {
    return [read](const KeyValue& value) -> std::string {
      for (const std::string& word : std::get<std::vector<std::string>>(value)) try {
          read(word);
        } catch (const DeckError& error) {
          return error.what();
        }
      return {};
    };
  };
  data.add("bucket_bins", &Part::bucket_bins, "",
           "Upper edges of the buckets, \"SECONDS\" or \"SECONDS:LABELS\", ascending (speech "
           "models). "
           "Empty: estimated.")
      .checked("\"SECONDS\" or \"SECONDS:LABELS\"",
               list_of([](const std::string& word) { bucket_bin_of(word); }))
      .not_with("data.format", {"synthetic"});
  data.add(
          "bucket_sizes", &Part::bucket_sizes, "",
          "Utterances per micro-batch in each bucket of data.bucket_bins, as found by `choir tune` "
          "(speech models). Empty: limited by data.batch_duration alone.")
      .checked("whole numbers", list_of([](const std::string& word) { bucket_size_of(word); }))
      .not_with("data.format", {"synthetic"});
  data.add("pad_to_bucket", &Part::pad_to_bucket, "",
           "Pad every micro-batch of a bucket to one shape, that of the bucket's longest utterance "
           "and most labels (speech models). A GPU replays recorded steps of shapes that occurred "
           "before.")
      .not_with("data.format", {"synthetic"});
  data.add("window", &Part::window, "utterances",
           "Utterances drawn together and sorted into buckets, which affects their order "
           "(speech models).")
      .at_least(1)
      .at_most(1 << 24)
      .not_with("data.format", {"synthetic"});
}

void add_filters(DataKeys& data) {
  data.add("min_duration", &Part::min_duration, "s",
           "Shortest utterance to train on (speech models).")
      .at_least(0);
  data.add("max_duration", &Part::max_duration, "s",
           "Longest utterance to train on (speech models). 0: no limit.")
      .at_least(0);
  data.add("min_labels_per_second", &Part::min_labels_per_second, "",
           "Fewest labels per second of utterances to train on (speech models).")
      .at_least(0);
  data.add("max_labels_per_second", &Part::max_labels_per_second, "",
           "Most labels per second of utterances to train on (speech models). 0: no limit.")
      .at_least(0);
}

}  // namespace

const KeyTable<SpeechSection>& speech_data_keys() {
  static const DataTable kTable = [] {
    DataTable table;
    DataKeys data = table.top();
    add_sources(data);
    add_blend_keys(
        table.section<BlendSection>("", [](SpeechSection& all) -> BlendSection& { return all; }));
    add_batches(data);
    add_filters(data);
    return table;
  }();
  return kTable;
}

std::vector<KeyProblem> check_speech_data(const Deck& deck, const SpeechSection& speech) {
  std::vector<KeyProblem> problems = check_blend(speech, deck.data.train);
  const auto add = [&](std::vector<std::string> keys, std::string text) {
    problems.push_back({std::move(keys), std::move(text)});
  };
  const DataSection& data = deck.data;
  if (data.format != DataFormat::automatic && data.format != DataFormat::synthetic)
    add({"data.format"},
        fmt::format("data.format = \"{}\" is a format of text; legal for speech: auto, synthetic",
                    name_of(data.format)));
  if (speech.max_duration > 0 && speech.min_duration > speech.max_duration)
    add({"data.min_duration", "data.max_duration"},
        fmt::format("data.min_duration = {} is above data.max_duration = {}", speech.min_duration,
                    speech.max_duration));
  if (speech.max_labels_per_second > 0 &&
      speech.min_labels_per_second > speech.max_labels_per_second)
    add({"data.min_labels_per_second", "data.max_labels_per_second"},
        fmt::format("data.min_labels_per_second = {} is above data.max_labels_per_second = {}",
                    speech.min_labels_per_second, speech.max_labels_per_second));
  if (speech.labels.empty() && (speech.min_labels_per_second > 0 ||
                                speech.max_labels_per_second > 0 || speech.label_buckets > 1))
    add({"data.labels", "data.min_labels_per_second", "data.max_labels_per_second",
         "data.label_buckets"},
        "data.labels is empty, and data.min_labels_per_second, data.max_labels_per_second or "
        "data.label_buckets count labels; set it, for example to \"char\"");
  if (!speech.bucket_sizes.empty() && speech.bucket_sizes.size() != speech.bucket_bins.size())
    add({"data.bucket_sizes", "data.bucket_bins"},
        fmt::format("data.bucket_sizes has {} numbers for {} data.bucket_bins",
                    speech.bucket_sizes.size(), speech.bucket_bins.size()));
  return problems;
}

}  // namespace choir
