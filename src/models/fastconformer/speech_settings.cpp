#include "choir/models/fastconformer/speech_settings.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>

#include "choir/core/json.hpp"
#include "choir/core/json_value.hpp"
#include "choir/core/text.hpp"
#include "src/models/fastconformer/fastconformer_family.hpp"

namespace choir {
namespace {

/// The whole word as a number from 0 on.
template <class Number>
Number number_of(std::string_view word, const std::string& what) {
  Number number{};
  const auto [stop, problem] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (problem != std::errc() || stop != word.data() + word.size() || !(number >= 0))
    throw DeckError(fmt::format("{}: '{}' is not a number from 0 on", what, word));
  return number;
}

/// A validation set hears all of its folders.
void require_no_weights(const std::vector<SpeechInput>& inputs, const std::string& path) {
  for (const SpeechInput& input : inputs) {
    if (input.weight)
      throw DeckError(fmt::format("{}: a validation set has no weights", path),
                      "it hears every utterance of its folders once; remove \"weight\"");
    require_no_weights(input.group, path);
  }
}

using Tags = std::vector<std::pair<std::string, std::string>>;

void set_option(SpeechEvalSet& set, const std::string& word, Tags& tags) {
  const std::size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string what = fmt::format("data.validation.{}, {}", set.name, name);
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  if (name == "limit")
    set.limit = number_of<std::int64_t>(value, what);
  else if (name == "batch_duration")
    set.batch_duration = number_of<double>(value, what);
  else if (name == "min_duration")
    set.filter.min_duration = number_of<double>(value, what);
  else if (name == "max_duration")
    set.filter.max_duration = number_of<double>(value, what);
  else if (name.starts_with("tag."))
    tags.emplace_back(name.substr(4), value);
  else
    throw DeckError(fmt::format("data.validation.{}: '{}' is not understood", set.name, word),
                    "FOLDER[,FOLDER...] [limit=N] [batch_duration=S] [min_duration=S] "
                    "[max_duration=S] [tag.NAME=VALUE]");
}

/// Results are stored under these.
void check_tag_word(const std::string& word, const std::string& set) {
  const auto legal = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-.:+").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (word.empty() || !std::ranges::all_of(word, legal))
    throw DeckError(fmt::format("data.validation.{}: '{}' is no name or value of a tag", set, word),
                    "letters, digits, '_', '-', '.', ':' and '+'");
}

/// A tag of the set holds for the folders that have none of its name.
void set_tag(SpeechEvalSet& set, const std::string& name, const std::string& value) {
  check_tag_word(name, set.name);
  check_tag_word(value, set.name);
  set.tags.resize(set.folders.size());
  for (auto& tags : set.tags) tags.emplace(name, value);
}

/// Folders and groups as in data.input_cfg.
void set_folders(SpeechEvalSet& set, const std::string& list) {
  const std::string path = "data.validation." + set.name;
  const JsonDocument document = parse_json(list, path);
  const SpeechMix mix = SpeechMix::of_json(document.root(), {}, path);
  require_no_weights(mix.inputs, path);
  for (const SpeechLeaf& leaf : leaves_of(mix)) {
    for (const auto& [name, value] : leaf.tags) {
      check_tag_word(name, set.name);
      check_tag_word(value, set.name);
    }
    set.folders.push_back(leaf.folder);
    set.tags.push_back(leaf.tags);
  }
  const auto empty = [](const auto& tags) { return tags.empty(); };
  if (std::ranges::all_of(set.tags, empty)) set.tags.clear();
}

SpeechMix mix_of(const Deck& deck, const SpeechSection& speech, const std::string& input_cfg) {
  if (input_cfg.empty()) return SpeechMix::of_folders(deck.data.train);
  const std::string& named = speech.input_cfg;
  const bool inside = named.starts_with('[') || named.starts_with('{');
  const JsonDocument document = parse_json(input_cfg, inside ? "data.input_cfg" : named);
  const nlohmann::json& root = document.root();
  if (!root.is_object()) return SpeechMix::of_json(root, {speech.temperature}, "data.input_cfg");
  // With the temperatures of the levels.
  std::vector<double> temperature{speech.temperature};
  nlohmann::json inputs = nlohmann::json::array();
  for (const auto& [key, value] : root.items()) {
    if (key == "inputs")
      inputs = value;
    else if (key == "temperature" && value.is_array() &&
             std::ranges::all_of(value, [](const auto& t) { return t.is_number(); }))
      temperature = value.get<std::vector<double>>();
    else
      throw DeckError(fmt::format("data.input_cfg.{}: {} is not understood", key, dumped(value)),
                      "inputs (a list) and temperature (a list of numbers, one a level)");
  }
  return SpeechMix::of_json(inputs, temperature, "data.input_cfg.inputs");
}

std::vector<SpeechEvalSet> eval_sets_of(const Deck& deck, const SpeechSection& speech) {
  std::vector<SpeechEvalSet> sets;
  for (const std::string& folder : deck.data.val) {
    SpeechEvalSet set;
    const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
    set.name = (path.has_filename() ? path : path.parent_path()).filename().string();
    // A manifest loses its ending: "val.json", "cuts.jsonl.gz".
    if (const std::size_t at = set.name.find(".json"); at != std::string::npos && at > 0)
      set.name.resize(at);
    set.folders = {folder};
    sets.push_back(std::move(set));
  }
  for (const auto& [name, text] : speech.validation) sets.push_back(eval_set_of(name, text));
  for (std::size_t i = 0; i < sets.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (sets[i].name == sets[j].name)
        throw DeckError(fmt::format("two validation sets are called '{}'", sets[i].name),
                        "name them in data.validation, as {\"clean\": \"data/a/val\"}");
  return sets;
}

SpeechBucketOptions batching_of(const SpeechSection& speech) {
  SpeechBucketOptions options;
  options.batch_duration = speech.batch_duration;
  options.quadratic_duration = speech.quadratic_duration;
  options.max_samples = speech.max_utterances;
  options.buckets = speech.buckets;
  options.label_buckets = speech.label_buckets;
  for (const std::string& word : speech.bucket_bins) options.bins.push_back(bucket_bin_of(word));
  for (const std::string& word : speech.bucket_sizes) options.sizes.push_back(bucket_size_of(word));
  return options;
}

}  // namespace

SpeechEvalSet eval_set_of(const std::string& name, const std::string& text) {
  SpeechEvalSet set;
  set.name = name;
  std::string words = text;
  if (trim(text).starts_with('[')) {
    const std::size_t end = text.rfind(']') + 1;
    set_folders(set, text.substr(0, end == 0 ? text.size() : end));
    words = text.substr(end);
  }
  Tags tags;
  for (const std::string& word : split(words, ' ')) {
    if (word.empty()) continue;
    if (set.folders.empty())
      set.folders = split(word, ',');
    else
      set_option(set, word, tags);
  }
  for (const auto& [tag, value] : tags) set_tag(set, tag, value);
  if (set.folders.empty() || std::ranges::find(set.folders, "") != set.folders.end())
    throw DeckError(fmt::format("data.validation.{} = \"{}\" names no folder", name, text),
                    "for example \"data/digits/val\"");
  return set;
}

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

std::string input_cfg_text(const SpeechSection& speech) {
  const std::string& named = speech.input_cfg;
  if (named.empty() || named.starts_with('[') || named.starts_with('{')) return named;
  return read_deck_text(named);
}

SpeechRequest speech_request(const Deck& deck) {
  const FastConformerConfig& model = speech_of(deck);
  return {.data = &speech_settings(deck).data,
          .sample_rate = static_cast<int>(model.mel.sample_rate),
          .vocab_size = model.vocab_size,
          .frames = model.speech_frames()};
}

SpeechDataConfig speech_data_config(const Deck& deck, const SpeechRequest& request,
                                    const std::string& input_cfg, std::uint64_t attempt) {
  const DataSection& d = deck.data;
  const SpeechSection& s = *request.data;
  SpeechDataConfig config;
  config.train = mix_of(deck, s, input_cfg);
  config.eval = eval_sets_of(deck, s);
  config.labels = s.labels;
  config.sample_rate = request.sample_rate;
  config.vocab_size = request.vocab_size;
  config.frames = request.frames;
  config.filter = {.min_duration = s.min_duration,
                   .max_duration = s.max_duration,
                   .min_labels_per_second = s.min_labels_per_second,
                   .max_labels_per_second = s.max_labels_per_second};
  config.on_bad = on_bad_of(s.on_bad, "data.on_bad");
  config.batching = batching_of(s);
  config.window = s.window;
  config.order_seed =
      speech_order_seed(s.shard_seed, static_cast<std::uint64_t>(deck.run.seed), attempt);
  config.reader.kind = reader_kind_of(d.reader);
  config.reader.preload = preload_of(d.preload);
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
           "Speech: NAME of labels.NAME.bin and tokenizer.NAME.json in every folder. A codec needs "
           "none (\"\"), but to choose or sort utterances by.")
      .when_resumed(OnResume::same_contents);
  data.add("input_cfg", &Part::input_cfg, "",
           "Speech, instead of data.train: a JSON list of folders and groups with weights and tags "
           "(or {inputs: LIST, temperature: [OF EACH LEVEL]}), or the name of a file with it.")
      .when_resumed(OnResume::same_contents);
  data.add("temperature", &Part::temperature, "",
           "Speech: exponent of the weights of data.input_cfg. 1: as given, 0: all alike.")
      .at_least(0);
  data.add(
          "validation", &Part::validation, "",
          "Speech: sets with names, each \"FOLDER[,FOLDER...] [limit=N] [batch_duration=S] "
          "[min_duration=S] [max_duration=S] [tag.NAME=VALUE]\"; or a list as in data.input_cfg in "
          "place of the folders, with tags by which results are told apart.")
      .when_resumed(OnResume::same_contents)
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
      .when_resumed(OnResume::same_contents)
      .one_of({"stop", "skip"});
}

void add_batches(DataKeys& data) {
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

void add_filters(DataKeys& data) {
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

const KeyTable<SpeechSection>& speech_data_keys() {
  static const DataTable kTable = [] {
    DataTable table;
    DataKeys data = table.top();
    add_sources(data);
    add_batches(data);
    add_filters(data);
    return table;
  }();
  return kTable;
}

std::vector<KeyProblem> check_speech_data(const Deck& deck, const SpeechSection& speech) {
  std::vector<KeyProblem> problems;
  const auto add = [&](std::vector<std::string> keys, std::string text) {
    problems.push_back({std::move(keys), std::move(text)});
  };
  const DataSection& data = deck.data;
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
  if (speech.labels.empty() && (speech.min_labels_per_second > 0 ||
                                speech.max_labels_per_second > 0 || speech.label_buckets > 1))
    add({"data.labels", "data.min_labels_per_second", "data.max_labels_per_second",
         "data.label_buckets"},
        "data.labels is empty, and data.min_labels_per_second, data.max_labels_per_second or "
        "data.label_buckets count labels; name them, \"char\"");
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

}  // namespace choir
