#include "src/models/duplex/data.hpp"

#include <algorithm>
#include <array>

#include "src/comm/agreement.hpp"
#include "src/core/text.hpp"
#include "src/data/speech/data_sources.hpp"
#include "src/models/fastconformer/speech_data.hpp"

namespace choir {
namespace {

/// Dialogues of a micro-batch, and frames of the longest.
struct DialogueKind {
  std::int64_t rows, frames;
};
constexpr std::array<DialogueKind, 3> kDialogueKinds{{{3, 6}, {2, 9}, {1, 14}}};
/// Offset of the random numbers of codes, after those of the text of a dialogue.
constexpr std::int64_t kOfCodes = 1 << 20;

}  // namespace

SyntheticDialogues::SyntheticDialogues(std::uint64_t seed, const DuplexConfig& config)
    : row_key_(philox_key(seed, "verify dialogues")),
      audio_key_(philox_key(seed, "verify users")),
      config_(config) {
  controls().check(config.lm.vocab_size);
  for (const BatchShape& shape : shapes()) {
    check_dialogue_length(config, shape.tokens);
    batches_.push_back(std::make_unique<HostBatch>(config, shape));
  }
  padding_ = std::make_unique<HostBatch>(
      config,
      BatchShape{
          .samples = 1, .tokens = 1, .audio_samples = config.encoder.speech_frames().multiple()});
  padding_->clear();
}

DialogueControls SyntheticDialogues::controls() const {
  const auto last = static_cast<std::int32_t>(config_.lm.vocab_size - 1);
  return {.pad = last, .bos = last - 1, .eos = last - 2};
}

BatchShape SyntheticDialogues::shape_of_kind(std::size_t number) const {
  const DialogueKind& kind = kDialogueKinds[number];
  return {.samples = kind.rows,
          .tokens = kind.frames,
          .audio_samples = kind.frames * config_.encoder.speech_frames().multiple()};
}

std::vector<BatchShape> SyntheticDialogues::shapes() const {
  std::vector<BatchShape> list;
  for (std::size_t kind = 0; kind < kDialogueKinds.size(); ++kind)
    list.push_back(shape_of_kind(kind));
  return list;
}

BatchShape SyntheticDialogues::shape(std::int64_t index) const {
  return shape_of_kind(kind(index));
}

std::size_t SyntheticDialogues::kind(std::int64_t index) const {
  return philox_at(row_key_, static_cast<std::uint64_t>(index), kMostRows)[0] %
         kDialogueKinds.size();
}

std::int64_t SyntheticDialogues::drawn(std::int64_t id, std::int64_t place,
                                       std::int64_t below) const {
  return static_cast<std::int64_t>(philox_at(row_key_, static_cast<std::uint64_t>(id),
                                             static_cast<std::uint64_t>(1000 + place))[0] %
                                   static_cast<std::uint64_t>(below));
}

std::vector<std::int64_t> SyntheticDialogues::lengths(std::int64_t index) const {
  const BatchShape shape = this->shape(index);
  std::vector<std::int64_t> list{shape.tokens};
  while (std::ssize(list) < shape.samples)
    list.push_back(1 + drawn(index * kMostRows + std::ssize(list), 0, shape.tokens));
  return list;
}

std::vector<std::int32_t> SyntheticDialogues::text_of(std::int64_t id, std::int64_t frames) const {
  const DialogueControls c = controls();
  const std::array<std::int32_t, 3> ends{c.pad, c.bos, c.eos};
  std::vector<std::int32_t> text;
  for (std::int64_t t = 0; t <= frames; ++t) {
    const std::int64_t what = drawn(id, 2 * t + 1, 6);
    text.push_back(what < std::ssize(ends)
                       ? ends[static_cast<std::size_t>(what)]
                       : static_cast<std::int32_t>(
                             drawn(id, 2 * t + 2, config_.lm.vocab_size - std::ssize(ends))));
  }
  return text;
}

// The codes of frame t are random except where the text begins or ends a turn. Row t reads the
// codes of frame t - 1 and predicts those of frame t.
void SyntheticDialogues::fill_agent(ModelBatch& batch, std::int64_t row, std::int64_t id,
                                    std::int64_t frames) const {
  const std::int64_t books = config_.codebooks, first = row * batch.tokens;
  const DialogueControls control = controls();
  const std::vector<std::int32_t> text = text_of(id, frames);
  const auto code = [&](std::int64_t t, std::int64_t k) {
    if (t < 0) return static_cast<std::int32_t>(config_.delay_code());
    const std::int32_t said = text[static_cast<std::size_t>(t)];
    return static_cast<std::int32_t>(said == control.bos ? config_.bos_code()
                                     : said == control.eos
                                         ? config_.eos_code()
                                         : drawn(id, kOfCodes + t * books + k, config_.codes));
  };
  for (std::int64_t t = 0; t < batch.tokens; ++t) {
    const std::int64_t at = first + t;
    const bool real = t < frames;
    batch["text"].as<std::int32_t>()[at] = real ? text[static_cast<std::size_t>(t)] : 0;
    batch["text_targets"].as<std::int32_t>()[at] =
        real ? text[static_cast<std::size_t>(t) + 1] : -1;
    for (std::int64_t k = 0; k < books; ++k) {
      batch["codes"].as<std::int32_t>()[at * books + k] = real ? code(t - 1, k) : 0;
      batch["code_targets"].as<std::int32_t>()[at * books + k] = real ? code(t, k) : -1;
    }
  }
}

void SyntheticDialogues::fill_user(ModelBatch& batch, std::int64_t row, std::int64_t id,
                                   std::int64_t frames) const {
  const std::int64_t rows = batch.samples, width = batch["audio"].shape[1];
  const std::int64_t samples = frames * config_.encoder.speech_frames().multiple();
  auto* audio = static_cast<std::int16_t*>(batch["audio"].data) + row * width;
  const double loud = 400.0 * static_cast<double>(1 + id % 7);
  for (std::int64_t i = 0; i < width; ++i) {
    const double noise =
        normal_at(audio_key_, static_cast<std::uint64_t>(id * (std::int64_t{1} << 32) + i));
    audio[i] = i < samples ? static_cast<std::int16_t>(std::clamp(loud * noise, -32768.0, 32767.0))
                           : std::int16_t{0};
  }
  batch["audio_lengths"].as<std::int32_t>()[row] = static_cast<std::int32_t>(samples);
  for (int stage = 0; stage <= config_.encoder.stages(); ++stage)
    batch["frame_lengths"].as<std::int32_t>()[stage * rows + row] =
        static_cast<std::int32_t>(config_.encoder.lengths_after(stage, samples));
  batch["sample_ids"].as<std::int64_t>()[row] = id;
  batch["dialogue_ids"].as<std::int64_t>()[row] = id;
}

ModelBatch SyntheticDialogues::micro_batch(std::int64_t index) {
  ModelBatch& batch = batches_[kind(index)]->batch;
  const std::vector<std::int64_t> frames = lengths(index);
  for (std::int64_t row = 0; row < batch.samples; ++row) {
    const std::int64_t id = index * kMostRows + row, n = frames[static_cast<std::size_t>(row)];
    fill_agent(batch, row, id, n);
    fill_user(batch, row, id, n);
  }
  hear_frames(config_, batch);
  const TensorView &targets = batch["text_targets"], &weights = batch["text_weights"];
  const auto cells = static_cast<std::size_t>(targets.count());
  weigh_text(config_.loss, controls(), batch.tokens, {targets.as<std::int32_t>(), cells},
             {weights.as<float>(), cells});
  return batch;
}

ModelBatch SyntheticDialogues::padding() {
  return padding_->batch;
}

ByTerm SyntheticDialogues::targets(std::int64_t first, std::int64_t count) const {
  std::int64_t frames = 0;
  for (std::int64_t index = first; index < first + count; ++index)
    for (const std::int64_t n : lengths(index)) frames += n;
  ByTerm counted(2, static_cast<double>(frames));
  counted[1] *= static_cast<double>(config_.codebooks);
  return counted;
}

double SyntheticDialogues::audio_seconds(std::int64_t index) const {
  double frames = 0;
  for (const std::int64_t n : lengths(index)) frames += static_cast<double>(n);
  return frames * config_.encoder.seconds_per_frame();
}

namespace {

constexpr EvalWords kDuplexEvalWords{
    .durations = true, .batch_duration = true, .tags = true, .dialogues = true};

/// The number of dialogues to hold of each validation set, as DialogueOptions.
std::vector<std::int64_t> dialogues_of_sets(const Deck& deck) {
  const DuplexSection& data = duplex_settings(deck).data;
  std::vector<std::int64_t> dialogues;
  for (const auto& set : eval_sets_of(deck.data.val, data.validation, kDuplexEvalWords))
    dialogues.push_back(set.generation.dialogues.value_or(data.dialogues));
  return dialogues;
}

DialogueConfig dialogue_config(const Deck& deck, bool training, const std::string& vocabulary) {
  const DuplexSettings& settings = duplex_settings(deck);
  const DuplexSection& data = settings.data;
  DialogueConfig config;
  const bool named = !deck.data.train.empty() || !data.input_cfg.empty();
  if (training && !named)
    throw DeckError("nothing to train on: data.train is not given",
                    "name folders of dialogues (`choir prepare dialogues`)");
  config.user.eval = eval_sets_of(deck.data.val, data.validation, kDuplexEvalWords);
  if (!training && config.user.eval.empty())
    throw DataError("there is no validation data",
                    "name folders of dialogues in data.val, or sets in data.validation");
  config.user.frames = settings.model.encoder.speech_frames();
  config.user.sample_rate = static_cast<int>(settings.model.encoder.mel.sample_rate);
  config.user.on_bad = on_bad_of(data.on_bad, "data.on_bad");
  config.user.batching.batch_duration = data.batch_duration;
  config.user.batching.max_samples = data.max_dialogues;
  config.user.batching.buckets = data.buckets;
  config.user.window = data.window;
  config.codes = data.codes;
  config.codebooks = settings.model.codebooks;
  config.codes_per_book = settings.model.codes;
  config.vocab_size = settings.model.lm.vocab_size;
  if (!vocabulary.empty()) {
    const auto meaning = DialogueMeaning::from_json(vocabulary, "the checkpoint");
    config.form_hash = meaning.form.hash();
    config.codec_hash = meaning.codec.hash;
  }
  return config;
}

/// Shapes in rows, of which there is one less than frames.
std::vector<BatchShape> shapes_of(const std::vector<SpeechShape>& shapes) {
  std::vector<BatchShape> list = largest_shapes(shapes);
  for (BatchShape& shape : list) {
    shape.tokens = std::max<std::int64_t>(shape.labels - 1, 1);
    shape.labels = 0;
  }
  return list;
}

/// Collective over the mesh. Opens the runs that transcribe the agent in validation; nullptr if
/// none.
std::unique_ptr<AgentEar> open_ear(const Deck& deck, const DialogueBatches& data, Mesh& mesh) {
  const DuplexSection& settings = duplex_settings(deck).data;
  std::int64_t frames = 0;
  for (const SpeechShape& shape : data.user().eval_shapes())
    frames = std::max(frames, shape.labels);
  if (settings.codec.empty() || frames == 0) return nullptr;
  return std::make_unique<AgentEar>(deck.families.table(),
                                    AgentEar::Runs{.codec = settings.codec,
                                                   .recogniser = settings.recogniser,
                                                   .device = settings.scorer_device},
                                    data.codec(), frames, mesh.world());
}

/// Collective over the mesh.
void load_ear(AgentEar* ear, Device& device, Mesh& mesh, Logger& log) {
  if (ear != nullptr) log.info("{}", ear->load(device, mesh.world()));
}

}  // namespace

std::unique_ptr<DialogueBatches> open_dialogues(const Deck& deck, Mesh& mesh, bool training,
                                                const std::string& vocabulary) {
  DialogueConfig config;
  const DuplexSection& section = duplex_settings(deck).data;
  together(mesh.world(), [&] { config = dialogue_config(deck, training, vocabulary); });
  if (training)
    config.user.train =
        open_blend(mesh.world(), section.input_cfg, deck.data.train, section.temperature);
  config.user.order_seed =
      open_order_seed(mesh.world(), section.shard_seed, static_cast<std::uint64_t>(deck.run.seed));
  config.user.peers = &mesh.host_peers();
  auto data = DialogueBatches::open(mesh.host_along(Axis::data), config);
  together(mesh.world(), [&] {
    for (const auto* shapes : {&data->user().shapes(), &data->user().eval_shapes()})
      for (const SpeechShape& shape : *shapes)
        check_dialogue_length(duplex_settings(deck).model, shape.labels - 1);
  });
  return data;
}

DuplexTrainingData::DuplexTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                       Logger& log)
    : batch_(batch),
      mesh_(mesh),
      log_(log),
      data_(open_dialogues(deck, mesh, true)),
      batches_(duplex_settings(deck).model, data_->form().controls),
      ear_(open_ear(deck, *data_, mesh)),
      options_{.dialogues = dialogues_of_sets(deck), .ear = ear_.get()},
      drawn_(data_->user().sources().size(), 0) {
  if (!has_validation()) warn_without_validation(mesh, log);
  const auto none = [](std::int64_t dialogues) { return dialogues == 0; };
  if (std::ranges::all_of(options_.dialogues, none) || mesh.layout().size(Axis::pipeline) == 1)
    return;
  if (mesh.rank() == 0)
    log.warn(
        "no rank has the whole model with parallel.pipeline = {}: validation measures losses and "
        "holds no dialogues (eval.dialogues); `choir eval RUN` does",
        mesh.layout().size(Axis::pipeline));
}

// Identified by counts, units and codec: hours of audio are too much to read for it.
std::string DuplexTrainingData::contents() const {
  return fmt::format("text {:016x}, codec {:016x}", data_->form().hash(), data_->codec().hash) +
         counts_of(data_->user(), "dialogues");
}

std::vector<BatchShape> DuplexTrainingData::shapes() const {
  return shapes_of(data_->user().shapes());
}
std::vector<BatchShape> DuplexTrainingData::validation_shapes() const {
  return shapes_of(data_->user().eval_shapes());
}

void DuplexTrainingData::start_training(const Sharding& sharding, std::int64_t per_rank,
                                        const Position& from) {
  steps_.begin(data_->user().sampler(), from, batch_.global, "dialogues", mesh_, log_);
  data_->user().start_training(steps_.order(sharding, per_rank));
}

ByTerm DuplexTrainingData::targets_of(const SpeechItem& item) const {
  ByTerm targets(2, static_cast<double>(data_->text_targets(item.labels)));
  targets[1] = static_cast<double>(data_->code_targets(item.labels));
  return targets;
}

ModelBatch DuplexTrainingData::next() {
  const DialogueBatch& dialogues = data_->next();
  ModelBatch batch = batches_.of(dialogues);
  count_dropped(
      *dialogues.user, [&](const SpeechItem& item) { return targets_of(item); }, batch);
  return batch;
}

StepContent DuplexTrainingData::content(std::int64_t step, const Model& model) {
  return steps_.content(step, [&](const SpeechStep& planned, StepContent& to) {
    std::int64_t samples = 0;
    for (const SpeechRow& row : planned.rows) {
      samples += row.item.samples;
      ++drawn_[static_cast<std::size_t>(row.item.leaf)];
      to.flops += model.flops({.samples = 1,
                               .tokens = std::max(row.item.labels - 1, 1),
                               .audio_samples = row.item.samples});
    }
    announce_targets(
        planned, 2, [&](const SpeechItem& item) { return targets_of(item); }, to);
    to.audio_seconds =
        static_cast<double>(samples) / static_cast<double>(data_->user().sample_rate());
  });
}

void DuplexTrainingData::load_scorers(Device& device) {
  load_ear(ear_.get(), device, mesh_, log_);
}

std::vector<std::string> DuplexTrainingData::take_warnings() {
  return gathered_warnings(data_->user(), mesh_);
}

DuplexEvaluationData::DuplexEvaluationData(const Deck& deck, const std::string& vocabulary,
                                           Mesh& mesh, Logger& log)
    : mesh_(mesh),
      log_(log),
      data_(open_dialogues(deck, mesh, false, vocabulary)),
      batches_(duplex_settings(deck).model, data_->form().controls),
      ear_(open_ear(deck, *data_, mesh)),
      options_{.dialogues = dialogues_of_sets(deck), .ear = ear_.get()} {}

void DuplexEvaluationData::load_scorers(Device& device) {
  load_ear(ear_.get(), device, mesh_, log_);
}

std::vector<BatchShape> DuplexEvaluationData::shapes() const {
  return shapes_of(data_->user().eval_shapes());
}

}  // namespace choir
