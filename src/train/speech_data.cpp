#include "choir/train/speech_data.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "choir/comm/agreement.hpp"
#include "choir/comm/gather_text.hpp"
#include "choir/core/json.hpp"
#include "choir/core/text.hpp"
#include "choir/data/corpus_labels.hpp"
#include "choir/train/run_setup.hpp"

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

/// Of any folder: its labels are of one vocabulary, or the data set is refused.
TextUnits units_of(const SpeechDataConfig& config, Mesh& mesh, std::uint64_t hash) {
  const std::string folder = !config.train.inputs.empty() ? leaves_of(config.train).front().folder
                                                          : config.eval.front().folders.front();
  const std::string path = units_path(folder, config.labels);
  std::string text;
  together(mesh.world(), [&] {
    if (mesh.rank() != 0) return;
    const TextUnits units = TextUnits::load(path);
    if (units.hash() != hash)
      throw DataError(fmt::format("{} ({:016x}) is not what the labels beside it were written "
                                  "with ({:016x})",
                                  path, units.hash(), hash),
                      "make the labels again with `choir prepare tokens`");
    text = units.to_json();
  });
  broadcast_text(mesh.world(), text);
  return TextUnits::from_json(text, path);
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

SpeechData open_speech(const Deck& deck, Mesh& mesh, bool training, std::uint64_t tokenizer_hash) {
  std::string input_cfg;
  std::int64_t attempt = 0;
  SpeechDataConfig config;
  together(mesh.world(), [&] {
    if (mesh.rank() != 0) return;
    input_cfg = training ? input_cfg_text(deck) : "";
    attempt = std::chrono::system_clock::now().time_since_epoch().count();
  });
  broadcast_text(mesh.world(), input_cfg);
  mesh.world().broadcast(&attempt, sizeof attempt, 0);
  together(mesh.world(), [&] {
    config = speech_data_config(deck, input_cfg, static_cast<std::uint64_t>(attempt));
    if (!training) config.train = {};
    if (training && config.train.inputs.empty())
      throw DeckError("nothing to train on: data.train is not given",
                      "name folders of packed speech (`choir prepare audio`)");
    if (!training && config.eval.empty())
      throw DataError("there is no validation data",
                      "name folders of packed speech in data.val, or sets in data.validation");
  });
  config.tokenizer_hash = tokenizer_hash;
  config.peers = &mesh.host_peers();
  auto set = SpeechDataset::open(mesh.host_along(Axis::data), config);
  TextUnits units = units_of(config, mesh, set->tokenizer_hash());
  return {std::move(set), std::move(units)};
}

ModelBatch speech_batch(const SpeechBatch& batch) {
  ModelBatch result;
  result.samples = batch.audio.shape[0];
  result.audio = batch.audio;
  result.audio_lengths = batch.audio_lengths;
  result.frame_lengths = batch.frame_lengths;
  result.sample_ids = batch.sample_ids;
  result.labels = batch.labels;
  result.label_lengths = batch.label_lengths;
  return result;
}

std::vector<BatchShape> largest_shapes(const std::vector<SpeechShape>& shapes) {
  std::vector<BatchShape> list;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const SpeechShape& a = shapes[i];
    bool contained = false;
    for (std::size_t j = 0; j < shapes.size() && !contained; ++j) {
      const SpeechShape& b = shapes[j];
      contained = b.utterances >= a.utterances && b.samples >= a.samples && b.labels >= a.labels &&
                  (j < i || !(a == b)) && j != i;
    }
    if (!contained)
      list.push_back({.samples = a.utterances, .audio_samples = a.samples, .labels = a.labels});
  }
  return list;
}

}  // namespace choir
