// The keys of data.* that model.type = "fastconformer" has, and what is wrong with their values.
#include <fmt/core.h>

#include "choir/train/deck/deck_speech_data.hpp"
#include "deck_tables.hpp"

namespace choir::deck {
namespace {

using Part = SpeechSection;
using Section = Table::Section<Part>;

void add_sources(Section& data) {
  data.add("labels", &Part::labels, "",
           "Speech: NAME of labels.NAME.bin and tokenizer.NAME.json in every folder.");
  data.add("input_cfg", &Part::input_cfg, "",
           "Speech, instead of data.train: a JSON list of folders and groups with weights and tags "
           "(or {inputs: LIST, temperature: [OF EACH LEVEL]}), or the name of a file with it.");
  data.add("temperature", &Part::temperature, "",
           "Speech: exponent of the weights of data.input_cfg. 1: as given, 0: all alike.")
      .at_least(0);
  data.add(
          "validation", &Part::validation, "",
          "Speech: sets with names, each \"FOLDER[,FOLDER...] [limit=N] [batch_duration=S] "
          "[min_duration=S] [max_duration=S] [tag.NAME=VALUE]\"; or a list as in data.input_cfg in "
          "place of the folders, with tags by which results are told apart.")
      .checked("folders and options", [](const KeyValue& value) -> std::string {
        for (const auto& [name, text] : std::get<TextMap>(value)) try {
            eval_set_of(name, text);
          } catch (const DeckError& error) {
            return fmt::format("{}; {}", error.what(), error.hint());
          }
        return {};
      });
  data.add("shard_seed", &Part::shard_seed, "",
           "Speech: seed of the order of the data. Empty: run.seed; randomized: another one at "
           "every start, so that a resumed run draws anew.")
      .checked("\"\", an integer or \"randomized\"", [](const KeyValue& value) -> std::string {
        try {
          speech_order_seed(std::get<std::string>(value), 0, 0);
        } catch (const DeckError&) {
          return "expected an integer of at most 18 digits, \"randomized\", or \"\"";
        }
        return {};
      });
  data.add("on_bad", &Part::on_bad, "",
           "Speech: utterances that are damaged, cannot be spelled in the vocabulary, or not by "
           "CTC: stop, or leave out up to 1 % of all.")
      .one_of({"stop", "skip"});
}

void add_batches(Section& data) {
  data.add("batch_duration", &Part::batch_duration, "s",
           "Speech: audio of a micro-batch at most, padding included.")
      .above(0);
  data.add("quadratic_duration", &Part::quadratic_duration, "s",
           "Speech: an utterance of d seconds counts as d + d^2 / this. 0: as d.")
      .at_least(0);
  data.add("max_utterances", &Part::max_utterances, "utterances",
           "Speech: of a micro-batch. 0: any number.")
      .at_least(0);
  data.add(
          "buckets", &Part::buckets, "",
          "Speech: kinds of length that micro-batches are made of, by an equal share of the audio.")
      .at_least(1)
      .at_most(1024);
  data.add("label_buckets", &Part::label_buckets, "",
           "Speech: parts of each bucket by the number of labels.")
      .at_least(1)
      .at_most(64);
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
           "Speech: upper edges of the buckets, \"SECONDS\" or \"SECONDS:LABELS\", ascending. "
           "Empty: "
           "estimated.")
      .checked("\"SECONDS\" or \"SECONDS:LABELS\"",
               list_of([](const std::string& word) { bucket_bin_of(word); }));
  data.add("bucket_sizes", &Part::bucket_sizes, "",
           "Speech: utterances of a micro-batch of each of data.bucket_bins, as `choir tune` finds "
           "them. Empty: by data.batch_duration alone.")
      .checked("whole numbers", list_of([](const std::string& word) { bucket_size_of(word); }));
  data.add("window", &Part::window, "utterances",
           "Speech: drawn together and sorted into buckets; the order of the data depends on it.")
      .at_least(1)
      .at_most(1 << 24);
}

void add_filters(Section& data) {
  data.add("min_duration", &Part::min_duration, "s", "Speech: of utterances to train on.")
      .at_least(0);
  data.add("max_duration", &Part::max_duration, "s", "Speech: of utterances to train on. 0: any.")
      .at_least(0);
  data.add("min_labels_per_second", &Part::min_labels_per_second, "",
           "Speech: of utterances to train on.")
      .at_least(0);
  data.add("max_labels_per_second", &Part::max_labels_per_second, "",
           "Speech: of utterances to train on. 0: any.")
      .at_least(0);
}

}  // namespace

void add_speech_data_keys(Table& table) {
  Section data = table.section("data", &Deck::speech);
  add_sources(data);
  add_batches(data);
  add_filters(data);
}

std::vector<std::string> speech_data_keys() {
  Table table;
  add_speech_data_keys(table);
  std::vector<std::string> paths;
  for (const Key& key : table.keys()) paths.push_back(key.path);
  return paths;
}

std::vector<KeyProblem> check_speech_data(const Deck& deck) {
  std::vector<KeyProblem> problems;
  const auto add = [&](std::vector<std::string> keys, std::string text) {
    problems.push_back({std::move(keys), std::move(text)});
  };
  const DataSection& data = deck.data;
  const SpeechSection& speech = deck.speech;
  if (data.format != "auto" && data.format != "synthetic")
    add({"data.format"},
        fmt::format("data.format = \"{}\" is of text; legal for speech: auto, synthetic",
                    data.format));
  if (!data.train.empty() && !speech.input_cfg.empty())
    add({"data.input_cfg", "data.train"},
        "data.train and data.input_cfg both say what to train on; remove one");
  if (speech.max_duration > 0 && speech.min_duration > speech.max_duration)
    add({"data.min_duration", "data.max_duration"},
        fmt::format("data.min_duration = {} is above data.max_duration = {}", speech.min_duration,
                    speech.max_duration));
  if (speech.max_labels_per_second > 0 &&
      speech.min_labels_per_second > speech.max_labels_per_second)
    add({"data.min_labels_per_second", "data.max_labels_per_second"},
        fmt::format("data.min_labels_per_second = {} is above data.max_labels_per_second = {}",
                    speech.min_labels_per_second, speech.max_labels_per_second));
  if (!speech.bucket_sizes.empty() && speech.bucket_sizes.size() != speech.bucket_bins.size())
    add({"data.bucket_sizes", "data.bucket_bins"},
        fmt::format("data.bucket_sizes has {} numbers for {} data.bucket_bins",
                    speech.bucket_sizes.size(), speech.bucket_bins.size()));
  if (data.readers_every > 0 && data.reader != "scatter")
    add({"data.readers_every", "data.reader"},
        fmt::format("data.readers_every = {} is for data.reader = \"scatter\", not \"{}\"",
                    data.readers_every, data.reader));
  return problems;
}

}  // namespace choir::deck
