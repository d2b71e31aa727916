#include "src/models/fastconformer/speech_data.hpp"

#include <fmt/core.h>

#include <filesystem>
#include <optional>

#include "src/comm/agreement.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/corpora/corpus_preparation.hpp"
#include "src/data/speech/label_file.hpp"
#include "src/deck/name_patterns.hpp"
#include "src/models/fastconformer/speech_settings.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/open.hpp"

namespace choir {
namespace {

/// Reads the vocabulary of the first folder. All folders have the same, or the data set is refused.
Vocabulary vocabulary_of(const SpeechDataConfig& config, Mesh& mesh, std::uint64_t hash) {
  const std::string folder = !config.train.inputs.empty() ? leaves_of(config.train).front().folder
                                                          : config.eval.front().folders.front();
  const std::string path = units_path(folder, config.labels);
  std::string text;
  together(mesh.world(), [&] {
    if (mesh.rank() != 0) return;
    const Vocabulary vocabulary = Vocabulary::load(path);
    if (vocabulary.hash() != hash)
      throw DataError(fmt::format("{} ({:016x}) is not the vocabulary of the labels beside it "
                                  "({:016x})",
                                  path, vocabulary.hash(), hash),
                      "rewrite the labels with `choir prepare tokens`");
    text = vocabulary.to_json();
  });
  broadcast_text(mesh.world(), text);
  return Vocabulary::from_json(text, path);
}

/// Collects the folders of a mix at all levels.
void add_folders(std::vector<SpeechInput>& inputs, std::vector<std::string*>& all) {
  for (SpeechInput& input : inputs) {
    if (!input.folder.empty()) all.push_back(&input.folder);
    add_folders(input.group, all);
  }
}

/// Replaces manifests by the packed data that are made from them on first use. `units` are those of
/// a checkpoint, "" for none; returns the units of all labels if they are known now.
std::string pack_manifests(const SpeechSection& speech, SpeechDataConfig& config,
                           const std::string& units, Mesh& mesh) {
  std::vector<std::string*> paths;
  add_folders(config.train.inputs, paths);
  const std::size_t training = paths.size();
  for (SpeechEvalSet& set : config.eval)
    for (std::string& folder : set.folders) paths.push_back(&folder);
  Logger log(mesh.rank() == 0);
  log.to_stdout();
  return pack_on_first_use(mesh.world(), log, paths, training,
                           {.labels = config.labels,
                            .units = units,
                            .sample_rate = config.sample_rate,
                            .channel = speech.channel,
                            .on_bad = on_bad_of(speech.on_bad, "data.on_bad"),
                            .bad_cap = speech.bad_cap});
}

/// The units in which a training labels its data because it begins with the head of another run,
/// and that run.
struct StartUnits {
  std::string json, run;
};

/// Collective. Reads the units from the checkpoint that the run continues from, else from the run
/// that it begins with. Without a readable one there are none: the start refuses it by name.
StartUnits units_of_start(const Deck& deck, Communicator& world) {
  StartUnits start{.json = {}, .run = source_of_head(deck.checkpoint)};
  if (start.run.empty()) return start;
  const std::string& resume = deck.checkpoint.resume;
  try {
    std::optional<Checkpoint> found;
    if (resume == "auto")
      found = find_newest_valid(deck.run.dir + "/checkpoints", world, Verify::sizes);
    else if (resume != "none")
      found = open_checkpoint(resume, world, Verify::sizes);
    if (!found) found = open_checkpoint(start.run, world, Verify::sizes);
    start.json = TrainMeta::parse(found->json, found->path).vocabulary;
  } catch (const StorageError&) {
    start.json.clear();
  }
  return start;
}

/// Collective. True if the first folder to train on was labelled by hand in other units: the deck
/// then asks for these.
bool labelled_otherwise(const SpeechDataConfig& config, const std::string& units, Mesh& mesh) {
  int other = 0;
  together(mesh.world(), [&] {
    if (mesh.rank() != 0) return;
    for (const SpeechLeaf& leaf : leaves_of(config.train)) {
      const std::string path = units_path(leaf.folder, config.labels);
      if (!std::filesystem::is_directory(leaf.folder) || !std::filesystem::exists(path)) continue;
      const std::uint64_t wanted = Vocabulary::from_json(units, "the checkpoint").hash();
      other = Vocabulary::load(path).hash() != wanted;
      return;
    }
  });
  mesh.world().broadcast(&other, sizeof other, 0);
  return other != 0;
}

struct OpenedSpeech {
  SpeechDataConfig config;
  std::unique_ptr<SpeechDataset> set;
  std::string units;  ///< JSON of the units; "" if they are those beside the labels
};

OpenedSpeech opened(const Deck& deck, const SpeechRequest& request, Mesh& mesh, bool training,
                    const std::string& units) {
  const SpeechSection& data = *request.data;
  SpeechDataConfig config;
  SpeechMix mix;
  if (training) mix = open_blend(mesh.world(), data.input_cfg, deck.data.train, data.temperature);
  const std::uint64_t seed =
      open_order_seed(mesh.world(), data.shard_seed, static_cast<std::uint64_t>(deck.run.seed));
  together(mesh.world(), [&] {
    config = speech_data_config(deck, request);
    config.train = std::move(mix);
    config.order_seed = seed;
    if (training && config.train.inputs.empty())
      throw DeckError("nothing to train on: data.train is not given",
                      "name folders of packed speech (`choir prepare audio`)");
    if (!training && config.eval.empty())
      throw DataError("there is no validation data",
                      "name folders of packed speech in data.val, or sets in data.validation");
  });
  std::string given = units;
  if (training && given.empty() && !data.labels.empty()) {
    StartUnits start = units_of_start(deck, mesh.world());
    if (!start.json.empty() && !labelled_otherwise(config, start.json, mesh)) {
      given = std::move(start.json);
      Logger log(mesh.rank() == 0);
      log.to_stdout();
      log.info("data: the labels are in the units of {}, whose head the run begins with",
               start.run);
    }
  }
  std::string known = pack_manifests(*request.data, config, given, mesh);
  if (!known.empty()) {
    const Vocabulary vocabulary = Vocabulary::from_json(known, "the units of the labels");
    config.tokenizer_hash = vocabulary.hash();
    if (!given.empty())
      config.make_labels = [vocabulary, on_bad = config.on_bad, cap = config.bad_cap](
                               const AudioCatalog& catalog, bool validation) {
        return validation ? labels_in_memory(catalog, vocabulary, OnBad::skip, 1)
                          : labels_in_memory(catalog, vocabulary, on_bad, cap);
      };
    config.own_labels = own_labels_name(config.labels, config.tokenizer_hash);
  }
  config.peers = &mesh.host_peers();
  auto set = SpeechDataset::open(mesh.host_along(Axis::data), config);
  return {std::move(config), std::move(set), std::move(known)};
}

}  // namespace

std::string source_of_head(const CheckpointSection& wish) {
  const auto takes = [&](const std::string& pattern) {
    return matches_pattern(pattern, kHeadWeight) && !matches_any(wish.init_skip, kHeadWeight);
  };
  if (const std::string run = wish.init_run(); !run.empty()) {
    const bool wanted = wish.init_take.empty() || matches_any(wish.init_take, kHeadWeight);
    return wanted && takes("*") ? run : "";
  }
  for (const auto& [pattern, run] : wish.init_map())
    if (takes(pattern)) return run;
  return {};
}

SpeechData open_speech(const Deck& deck, const SpeechRequest& request, Mesh& mesh, bool training,
                       const std::string& units) {
  if (request.data->labels.empty())
    throw DeckError("data.labels is empty, but recognisers need transcripts",
                    "name labels, \"char\" or \"bpe_256\"");
  auto [config, set, known] = opened(deck, request, mesh, training, units);
  Vocabulary vocabulary = known.empty() ? vocabulary_of(config, mesh, set->tokenizer_hash())
                                        : Vocabulary::from_json(known, "the units of the labels");
  return {std::move(set), std::move(vocabulary)};
}

std::unique_ptr<SpeechDataset> open_recordings(const Deck& deck, const SpeechRequest& request,
                                               Mesh& mesh, bool training) {
  return opened(deck, request, mesh, training, "").set;
}

ModelBatch speech_batch(const SpeechBatch& batch) {
  ModelBatch result = speech_fields(static_cast<int>(batch.frame_lengths.shape[0]) - 1,
                                    {.samples = batch.audio.shape[0]});
  result["audio"] = batch.audio;
  result["audio_lengths"] = batch.audio_lengths;
  result["frame_lengths"] = batch.frame_lengths;
  result["sample_ids"] = batch.sample_ids;
  result["labels"] = batch.labels;
  result["label_lengths"] = batch.label_lengths;
  if (batch.resident == nullptr) return result;
  BatchField& audio = result.fields().front();
  audio.resident = batch.resident;
  audio.resident_counts = batch.audio_lengths.as<std::int32_t>();
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

void warn_without_validation(const Mesh& mesh, Logger& log) {
  if (mesh.rank() == 0)
    log.warn(
        "there is no validation data: nothing is evaluated, and no checkpoint is the best; "
        "name folders in data.val, or sets in data.validation");
}

std::string counts_of(const SpeechDataset& set, std::string_view what) {
  std::string text;
  for (const SpeechSource& source : set.sources())
    text += fmt::format(", train {} {} of {:.6f} hours", source.utterances, what, source.hours);
  for (int i = 0; i < set.eval_sets(); ++i)
    text += fmt::format(", validation {} {}", set.eval_utterances(i), what);
  const std::vector<SpeechLeaf> leaves = leaves_of(set.sources());
  const std::string thing(what.substr(0, what.size() - 1));
  return text + blend_contents(set.sampler().blend(), leaves, thing.c_str());
}

std::vector<std::string> gathered_warnings(SpeechDataset& set, Mesh& mesh) {
  std::vector<std::string> lines;
  for (const std::string& text : gather_texts(mesh.world(), join(set.take_warnings(), "\n")))
    for (std::string& line : split(text, '\n')) lines.push_back(std::move(line));
  return lines;
}

SpeechCursor PlannedSteps::cursor_of(const TrainingData::Position& from, std::string_view what,
                                     Mesh& mesh, Logger& log) const {
  if (from.step == 0) return sampler_->begin();
  // A damaged position is treated like one of other data.
  const auto json = json_unless_broken(from.more);
  if (json.is_object() &&
      json.value("order", nlohmann::json()) == fmt::format("{:016x}", sampler_->hash())) {
    std::vector<std::int64_t> integers;
    for (const nlohmann::json& n : json.value("cursor", nlohmann::json::array()))
      integers.push_back(n.is_number_integer() ? n.get<std::int64_t>() : -1);
    return SpeechCursor::of_integers(integers, sampler_->blend().pools());
  }
  if (mesh.rank() == 0)
    log.warn(
        "the data are not those of the checkpoint ({}, blend, buckets or seed differ): their order "
        "begins anew",
        what);
  return sampler_->begin();
}

void PlannedSteps::begin(const SpeechSampler& sampler, const TrainingData::Position& from,
                         std::int64_t micro_batches, std::string_view what, Mesh& mesh,
                         Logger& log) {
  sampler_ = &sampler;
  micro_batches_ = micro_batches;
  together(mesh.world(), [&] {
    begin_ = cursor_of(from, what, mesh, log);
    steps_.emplace(sampler, begin_, micro_batches);
  });
  first_ = next_ = from.step;
}

SpeechOrder PlannedSteps::order(const Sharding& sharding, std::int64_t per_rank) const {
  return {.from = begin_,
          .micro_batches = micro_batches_,
          .first = sharding.first_micro_batch(per_rank),
          .places = per_rank,
          .stride = sharding.micro_batch_stride()};
}

std::string PlannedSteps::position(std::int64_t step) const {
  const SpeechCursor* cursor = &begin_;
  if (step > first_) {
    const Planned& last = place(step - 1);
    CHOIR_CHECK(last.step == step - 1, "the position after step {} is forgotten", step);
    cursor = &last.after;
  }
  nlohmann::ordered_json json;
  json["order"] = fmt::format("{:016x}", sampler_->hash());
  json["cursor"] = cursor->to_integers();
  return dumped(json);
}

const StepContent& PlannedSteps::content(std::int64_t step, const Fill& fill) {
  for (; next_ <= step; ++next_) {
    steps_->next(step_);
    Planned& to = place(next_);
    to.step = next_;
    to.after = step_.after;
    to.content = {.samples = static_cast<double>(step_.rows.size())};
    announce_targets(
        step_, 1, [](const SpeechItem& item) { return ByTerm(item.labels); }, to.content);
    fill(step_, to.content);
  }
  const Planned& found = place(step);
  CHOIR_CHECK(found.step == step, "the content of step {} is forgotten", step);
  return found.content;
}

}  // namespace choir
