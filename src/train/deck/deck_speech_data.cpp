#include "choir/train/deck/deck_speech_data.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "choir/core/json.hpp"
#include "choir/core/text.hpp"

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

SpeechMix mix_of(const Deck& deck, const std::string& input_cfg) {
  if (input_cfg.empty()) return SpeechMix::of_folders(deck.data.train);
  const std::string& named = deck.speech.input_cfg;
  const bool inside = named.starts_with('[') || named.starts_with('{');
  const JsonDocument document = parse_json(input_cfg, inside ? "data.input_cfg" : named);
  const nlohmann::json& root = document.root();
  if (!root.is_object())
    return SpeechMix::of_json(root, {deck.speech.temperature}, "data.input_cfg");
  // With the temperatures of the levels.
  std::vector<double> temperature{deck.speech.temperature};
  nlohmann::json inputs = nlohmann::json::array();
  for (const auto& [key, value] : root.items()) {
    if (key == "inputs")
      inputs = value;
    else if (key == "temperature" && value.is_array() &&
             std::ranges::all_of(value, [](const auto& t) { return t.is_number(); }))
      temperature = value.get<std::vector<double>>();
    else
      throw DeckError(fmt::format("data.input_cfg.{}: {} is not understood", key, value.dump()),
                      "inputs (a list) and temperature (a list of numbers, one a level)");
  }
  return SpeechMix::of_json(inputs, temperature, "data.input_cfg.inputs");
}

std::vector<SpeechEvalSet> eval_sets_of(const Deck& deck) {
  std::vector<SpeechEvalSet> sets;
  for (const std::string& folder : deck.data.val) {
    SpeechEvalSet set;
    const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
    set.name = (path.has_filename() ? path : path.parent_path()).filename().string();
    set.folders = {folder};
    sets.push_back(std::move(set));
  }
  for (const auto& [name, text] : deck.speech.validation) sets.push_back(eval_set_of(name, text));
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

std::string input_cfg_text(const Deck& deck) {
  const std::string& named = deck.speech.input_cfg;
  if (named.empty() || named.starts_with('[') || named.starts_with('{')) return named;
  return read_deck_text(named);
}

SpeechDataConfig speech_data_config(const Deck& deck, const std::string& input_cfg,
                                    std::uint64_t attempt) {
  const DataSection& d = deck.data;
  const SpeechSection& s = deck.speech;
  const FastConformerConfig model = speech_of(deck);
  SpeechDataConfig config;
  config.train = mix_of(deck, input_cfg);
  config.eval = eval_sets_of(deck);
  config.labels = s.labels;
  config.sample_rate = model.mel.sample_rate;
  config.vocab_size = model.vocab_size;
  config.frames = model.speech_frames();
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

}  // namespace choir
