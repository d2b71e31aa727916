#include "src/models/duplex/duplex_data.hpp"

#include <algorithm>

#include "choir/comm/agreement.hpp"
#include "choir/core/text.hpp"
#include "choir/data/conversations/conversation_sources.hpp"
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
  if (training) config.user.train = conversation_mix(data.input_cfg, deck.data.train);
  for (auto& [name, folders] : named_conversation_sets(deck.data.val, data.validation))
    config.user.eval.push_back({.name = name, .folders = folders});
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
  config.user.order_seed = static_cast<std::uint64_t>(deck.run.seed);
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

/// Rows are frames but the last.
std::vector<BatchShape> shapes_of(const std::vector<SpeechShape>& shapes) {
  std::vector<BatchShape> list = largest_shapes(shapes);
  for (BatchShape& shape : list) {
    shape.tokens = std::max<std::int64_t>(shape.labels - 1, 1);
    shape.labels = 0;
  }
  return list;
}

/// Losses of one set: a place for each micro-batch and term, zero on the other ranks, so that the
/// order of summation is that of the micro-batches on any number of ranks.
class DialogueScoring {
 public:
  DialogueScoring(ModelInstance& instance, DialogueBatches& data, DuplexBatches& batches, int set)
      : instance_(instance),
        mesh_(instance.mesh()),
        data_(data),
        batches_(batches),
        set_(set),
        calls_(data.user().eval_calls(set)),
        terms_(instance.loss_terms().size()),
        losses_(static_cast<std::size_t>(calls_ * mesh_.host_along(Axis::data).size()) * terms_) {}

  void run(ProgressLine* progress) {
    const bool all_walk = instance_.storage().sharding().values_sharded();
    for (std::int64_t call = 0; call < calls_; ++call) {
      if (progress != nullptr) progress->at(call, calls_);
      const DialogueBatch& batch = data_.eval_batch(set_, call);
      const SpeechBatch& user = *batch.user;
      labels_ = user.step_targets;
      // Without a batch of its own a rank still shows the others its part of the parameters.
      if (user.rows.empty() && !all_walk) continue;
      const ByTerm sums = instance_.loss_sums(batches_.of(batch));
      for (std::size_t t = 0; t < terms_; ++t)
        losses_[static_cast<std::size_t>(user.micro_batch) * terms_ + t] = sums[t];
    }
    for (Communicator* all : {&mesh_.host_replicas(), &mesh_.host_along(Axis::pipeline)})
      all->all_reduce(losses_.data(), losses_.size(), DType::f64, ReduceOp::sum);
  }

  ByTerm sums() const {
    ByTerm sums(terms_, 0);
    for (std::size_t i = 0; i < losses_.size(); ++i) sums[i % terms_] += losses_[i];
    return sums;
  }
  /// A dialogue has a target less than frames, and as many of each codebook.
  ByTerm targets() const {
    ByTerm targets(terms_, static_cast<double>(labels_ - data_.user().eval_utterances(set_)));
    targets[1] *= static_cast<double>(data_.codec().codebooks);
    return targets;
  }

 private:
  ModelInstance& instance_;
  Mesh& mesh_;
  DialogueBatches& data_;
  DuplexBatches& batches_;
  int set_;
  std::int64_t calls_;
  std::size_t terms_;
  std::int64_t labels_ = 0;
  std::vector<double> losses_;
};

}  // namespace

std::unique_ptr<DialogueBatches> open_dialogues(const Deck& deck, Mesh& mesh, bool training,
                                                const std::string& vocabulary) {
  DialogueConfig config;
  together(mesh.world(), [&] { config = dialogue_config(deck, training, vocabulary); });
  config.user.peers = &mesh.host_peers();
  auto data = DialogueBatches::open(mesh.host_along(Axis::data), config);
  together(mesh.world(), [&] {
    for (const auto* shapes : {&data->user().shapes(), &data->user().eval_shapes()})
      for (const SpeechShape& shape : *shapes)
        check_dialogue_length(duplex_settings(deck).model, shape.labels - 1);
  });
  return data;
}

DuplexBatches::DuplexBatches(const DuplexConfig& config, const DialogueControls& controls)
    : config_(config), controls_(controls) {}

ModelBatch DuplexBatches::of(const DialogueBatch& batch) {
  const SpeechBatch& user = *batch.user;
  const auto cells = static_cast<std::size_t>(batch.rows * batch.frames);
  frames_.resize(cells);
  weights_.resize(cells);
  ModelBatch result = duplex_fields(
      config_,
      {.samples = batch.rows, .tokens = batch.frames, .audio_samples = user.audio.shape[1]});
  result["audio"] = user.audio;
  result["audio_lengths"] = user.audio_lengths;
  result["frame_lengths"] = user.frame_lengths;
  result["sample_ids"] = result["dialogue_ids"] = user.sample_ids;
  result["text"] = batch.text;
  result["text_targets"] = batch.text_targets;
  result["codes"] = batch.codes;
  result["code_targets"] = batch.code_targets;
  result["frames"].data = frames_.data();
  result["text_weights"].data = weights_.data();
  hear_frames(config_, result);
  weigh_text(config_.loss, controls_, batch.frames,
             {batch.text_targets.as<std::int32_t>(), cells}, weights_);
  return result;
}

DuplexTrainingData::DuplexTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                       Logger& log)
    : batch_(batch),
      mesh_(mesh),
      log_(log),
      data_(open_dialogues(deck, mesh, true)),
      batches_(duplex_settings(deck).model, data_->form().controls),
      drawn_(data_->user().sources().size(), 0) {
  if (!has_validation()) warn_without_validation(mesh, log);
}

// By counts, units and codec: hours of audio are too much to be read for it.
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
  std::vector<Validation> list;
  ByTerm all_sums, all_targets;
  const int sets = data_->user().eval_sets();
  for (int set = 0; set < sets; ++set) {
    DialogueScoring scoring(instance, *data_, batches_, set);
    scoring.run(progress);
    const ByTerm sums = scoring.sums(), targets = scoring.targets();
    all_sums += sums;
    all_targets += targets;
    Validation one = validation_of(instance.loss_terms(), sums, targets);
    one.name = data_->user().eval_name(set);
    list.push_back(std::move(one));
  }
  if (sets == 1) {
    list.front().name.clear();
    return list;
  }
  list.insert(list.begin(), validation_of(instance.loss_terms(), all_sums, all_targets));
  return list;
}

}  // namespace choir
