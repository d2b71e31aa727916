// DuplexFamily: the model, its micro-batches and its runs.
#include <algorithm>

#include "choir/infer/model_instance.hpp"
#include "choir/train/step/synthetic_data.hpp"
#include "src/models/duplex/dialogue_group.hpp"
#include "src/models/duplex/duplex_data.hpp"
#include "src/models/duplex/duplex_family.hpp"
#include "src/models/duplex/synthetic_dialogues.hpp"

namespace choir {

const ModelFamily& duplex_family() {
  static const DuplexFamily kFamily;
  return kFamily;
}

const ModelFamily& family_of(const DuplexConfig&) {
  return duplex_family();
}

std::vector<LossTerm> DuplexFamily::loss_terms(const ModelConfig& config) const {
  const DuplexLoss& loss = config.as<DuplexConfig>().loss;
  return {{"text_loss", loss.text}, {"codes_loss", loss.audio}};
}

UnitCosts DuplexFamily::unit_costs(const ModelConfig& config) const {
  constexpr std::int64_t kSeconds = 20;
  const auto& c = config.as<DuplexConfig>();
  const std::int64_t samples = kSeconds * c.encoder.mel.sample_rate;
  return Duplex::unit_costs(
      c, {.samples = 1, .tokens = c.encoder.frames(samples), .audio_samples = samples});
}

std::vector<TiedNames> DuplexFamily::tied(const ModelConfig& config) const {
  const auto& c = config.as<DuplexConfig>();
  if (!c.lm.tied) return {};
  return {{.name = "lm.embedding.tokens.weight", .alias = "lm.head.weight", .unit = c.junction()}};
}

std::string DuplexFamily::describe(const ModelConfig& config) const {
  const auto& c = config.as<DuplexConfig>();
  return fmt::format(
      "encoder: {} blocks of {}, {} heads, chunks of {} frames of {:.0f} ms; language model: {} "
      "layers of {}, {} heads ({} of keys and values), vocabulary {}, {} frames at most, {}; {} "
      "codebooks of {}",
      c.encoder.n_layer, c.encoder.n_embd, c.encoder.n_head, c.encoder.right_context + 1,
      1000 * c.encoder.seconds_per_frame(), c.lm.n_layer, c.lm.n_embd, c.lm.n_head, c.lm.n_kv_head,
      c.lm.vocab_size, c.lm.block_size, c.lm.tied ? "tied" : "not tied", c.codebooks, c.codes);
}

ModelBatch DuplexFamily::fields(const ModelConfig& config, const BatchShape& shape) const {
  return duplex_fields(config.as<DuplexConfig>(), shape);
}

namespace {

void fill_all(const TensorView& view, std::int64_t value) {
  std::fill_n(view.as<std::int32_t>(), view.count(), static_cast<std::int32_t>(value));
}

}  // namespace

void DuplexFamily::fill(const ModelConfig& config, const BatchShape& shape,
                        ModelBatch& batch) const {
  const auto& c = config.as<DuplexConfig>();
  fill_all(batch["audio_lengths"], shape.audio_samples);
  for (int stage = 0; stage <= c.encoder.stages(); ++stage)
    fill_all(batch["frame_lengths"].slice(stage, 1),
             c.encoder.lengths_after(stage, shape.audio_samples));
  for (std::int64_t row = 0; row < shape.samples; ++row)
    batch["sample_ids"].as<std::int64_t>()[row] = batch["dialogue_ids"].as<std::int64_t>()[row] =
        row;
  hear_frames(c, batch);
  const TensorView& weights = batch["text_weights"];
  std::fill_n(weights.as<float>(), weights.count(), 1.0F);
}

ops::BenchShape DuplexFamily::op_shape(const ModelConfig& config, const BatchShape& shape) const {
  const auto& c = config.as<DuplexConfig>();
  ops::BenchShape ops = DecoderTower::op_shape(c.lm, shape);
  ops.speech = EncoderTower::op_shape(c.encoder, shape.samples, shape.audio_samples);
  return ops;
}

void DuplexFamily::clear(ModelBatch& batch) const {
  for (const char* zeros : {"audio_lengths", "frame_lengths", "frames", "text", "codes"})
    fill_all(batch[zeros], 0);
  for (const char* targets : {"text_targets", "code_targets"}) fill_all(batch[targets], -1);
  const TensorView& weights = batch["text_weights"];
  std::fill_n(weights.as<float>(), weights.count(), 0.0F);
}

std::unique_ptr<TrainingData> DuplexFamily::open_data(const Deck& deck, const BatchSizes& batch,
                                                      Mesh& mesh, Logger& log) const {
  if (deck.data.format != "synthetic")
    return std::make_unique<DuplexTrainingData>(deck, batch, mesh, log);
  const DuplexConfig config = model(deck).as<DuplexConfig>();
  return std::make_unique<SyntheticData>(
      std::make_unique<SyntheticDialogues>(static_cast<std::uint64_t>(deck.run.seed), config),
      config, batch,
      fmt::format("random dialogues about noise with a vocabulary of {} and {} codebooks of {}, "
                  "nothing is read; {} micro-batches a step",
                  config.vocab_size, config.codebooks, config.codes, deck.train.micro_batches));
}

std::unique_ptr<EvaluationData> DuplexFamily::open_evaluation(const Deck& deck,
                                                              const std::string& vocabulary,
                                                              Mesh& mesh, Logger& log) const {
  if (deck.data.format != "synthetic")
    return std::make_unique<DuplexEvaluationData>(deck, vocabulary, mesh);
  return ModelFamily::open_evaluation(deck, vocabulary, mesh, log);
}

std::unique_ptr<SyntheticBatches> DuplexFamily::synthetic_batches(const ModelConfig& config,
                                                                  std::uint64_t seed,
                                                                  std::int64_t) const {
  return std::make_unique<SyntheticDialogues>(seed, config.as<DuplexConfig>());
}

void DuplexFamily::evaluate_once(ModelInstance& instance, const ModelBatch& batch) const {
  instance.loss_sums(batch);
  if (instance.mesh().layout().size(Axis::pipeline) == 1)
    DialogueGroup(instance, {}).rehearse(batch);
}

}  // namespace choir
