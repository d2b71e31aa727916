#include "src/models/duplex/duplex_data.hpp"

#include <algorithm>

#include "choir/comm/agreement.hpp"
#include "choir/core/text.hpp"
#include "choir/data/speech/blend_source.hpp"
#include "choir/models/fastconformer/speech_data.hpp"

namespace choir {
namespace {

DialogueConfig dialogue_config(const Deck& deck, bool training, const std::string& vocabulary) {
  const DuplexSettings& settings = duplex_settings(deck);
  const DuplexSection& data = settings.data;
  DialogueConfig config;
  const bool named = !deck.data.train.empty() || !data.input_cfg.empty();
  if (training && !named)
    throw DeckError("nothing to train on: data.train is not given",
                    "name folders of dialogues (`choir prepare dialogues`)");
  config.user.eval = eval_sets_of(deck.data.val, data.validation, EvalWords{});
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
  return std::make_unique<AgentEar>(
      AgentEar::Runs{.codec = settings.codec, .recogniser = settings.recogniser}, data.codec(),
      frames, mesh.world());
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
      options_{.dialogues = duplex_settings(deck).data.dialogues, .ear = ear_.get()},
      drawn_(data_->user().sources().size(), 0) {
  if (!has_validation()) warn_without_validation(mesh, log);
  if (!has_validation() || options_.dialogues == 0 || mesh.layout().size(Axis::pipeline) == 1)
    return;
  options_.dialogues = 0;
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

StepContent DuplexTrainingData::content(std::int64_t step, const Model& model) {
  return steps_.content(step, [&](const SpeechStep& planned, StepContent& to) {
    std::int64_t samples = 0;
    to.targets = ByTerm(2, 0);
    for (const SpeechRow& row : planned.rows) {
      samples += row.item.samples;
      ++drawn_[static_cast<std::size_t>(row.item.leaf)];
      to.targets[0] += static_cast<double>(data_->text_targets(row.item.labels));
      to.targets[1] += static_cast<double>(data_->code_targets(row.item.labels));
      to.flops += model.flops({.samples = 1,
                               .tokens = std::max(row.item.labels - 1, 1),
                               .audio_samples = row.item.samples});
    }
    to.audio_seconds =
        static_cast<double>(samples) / static_cast<double>(data_->user().sample_rate());
  });
}

std::vector<std::string> DuplexTrainingData::take_warnings() {
  return gathered_warnings(data_->user(), mesh_);
}

std::vector<Validation> DuplexTrainingData::validate(ModelInstance& instance,
                                                     ProgressLine* progress) {
  const auto sets = score_dialogues(instance, *data_, batches_, options_, progress);
  if (mesh_.rank() == 0)
    for (const std::string& line : lines_of(sets)) log_.info("validation {}", line);
  return validations_of(instance.loss_terms(), sets);
}

DuplexEvaluationData::DuplexEvaluationData(const Deck& deck, const std::string& vocabulary,
                                           Mesh& mesh)
    : data_(open_dialogues(deck, mesh, false, vocabulary)),
      batches_(duplex_settings(deck).model, data_->form().controls),
      ear_(open_ear(deck, *data_, mesh)),
      options_{.dialogues = duplex_settings(deck).data.dialogues, .ear = ear_.get()} {}

std::vector<BatchShape> DuplexEvaluationData::shapes() const {
  return shapes_of(data_->user().eval_shapes());
}

EvaluationData::Result DuplexEvaluationData::evaluate(ModelInstance& instance,
                                                      ProgressLine* progress) {
  const auto sets = score_dialogues(instance, *data_, batches_, options_, progress);
  return {.lines = lines_of(sets),
          .metrics = metrics_text(validations_of(instance.loss_terms(), sets))};
}

}  // namespace choir
