// SalmFamily: the model, its micro-batches and its runs.
#include <algorithm>

#include "choir/data/vocabulary/vocabulary.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/models/starting_point.hpp"
#include "choir/train/step/synthetic_data.hpp"
#include "src/models/salm/salm_data.hpp"
#include "src/models/salm/salm_family.hpp"
#include "src/models/salm/salm_generator.hpp"
#include "src/models/salm/synthetic_conversations.hpp"

namespace choir {

ModelBatch salm_fields(int stages, const BatchShape& shape) {
  ModelBatch batch;
  batch.samples = shape.samples;
  batch.tokens = shape.tokens;
  const auto add = [&](std::string_view name, DType type, const Shape& extents, Shared shared) {
    batch.add({.name = name, .view = {nullptr, type, extents}, .shared = shared});
  };
  add("audio", DType::u16, {shape.clips, shape.audio_samples}, Shared::rows);  // 16 bits, signed
  add("audio_lengths", DType::i32, {shape.clips}, Shared::rows);
  add("frame_lengths", DType::i32, {stages + 1, shape.clips}, Shared::columns);
  add("sample_ids", DType::i64, {shape.clips}, Shared::rows);
  add("conversation_ids", DType::i64, {shape.samples}, Shared::nothing);
  const TensorView cells{nullptr, DType::i32, {shape.samples * shape.tokens}};
  batch.add({.name = "index", .view = cells, .shared = Shared::positions, .padding = 0});
  batch.add({.name = "targets", .view = cells, .shared = Shared::positions, .padding = -1});
  return batch;
}

const ModelFamily& salm_family() {
  static const SalmFamily kFamily;
  return kFamily;
}

const ModelFamily& family_of(const SalmConfig&) {
  return salm_family();
}

UnitCosts SalmFamily::unit_costs(const ModelConfig& config) const {
  constexpr std::int64_t kSeconds = 10, kTokens = 64;
  const auto& c = config.as<SalmConfig>();
  const std::int64_t samples = kSeconds * c.encoder.mel.sample_rate;
  return Salm::unit_costs(c, {.samples = 1,
                              .tokens = c.clip_rows().rows(samples) + kTokens,
                              .audio_samples = samples,
                              .clips = 1});
}

std::vector<TiedNames> SalmFamily::tied(const ModelConfig& config) const {
  const auto& c = config.as<SalmConfig>();
  if (!c.lm.tied) return {};
  return {{.name = "lm.embedding.tokens.weight", .alias = "lm.head.weight", .unit = c.junction()}};
}

namespace {

std::string adapter_text(const SalmAdapter& adapter) {
  std::string text;
  if (adapter.layers > 0) text += fmt::format("; adapter: {} blocks", adapter.layers);
  if (adapter.stack > 1) text += fmt::format("; {} frames a row", adapter.stack);
  return text;
}

}  // namespace

std::string SalmFamily::describe(const ModelConfig& config) const {
  const auto& c = config.as<SalmConfig>();
  return fmt::format(
      "encoder: {} blocks of {}, {} heads, subsampling {}{}; language model: {} layers of {}, {} "
      "heads ({} of keys and values), vocabulary {}, blocks of {}, {}",
      c.encoder.n_layer, c.encoder.n_embd, c.encoder.n_head, c.encoder.subsampling,
      adapter_text(c.adapter), c.lm.n_layer, c.lm.n_embd, c.lm.n_head, c.lm.n_kv_head,
      c.lm.vocab_size, c.lm.block_size, c.lm.tied ? "tied" : "not tied");
}

ModelBatch SalmFamily::fields(const ModelConfig& config, const BatchShape& shape) const {
  return salm_fields(config.as<SalmConfig>().encoder.stages(), shape);
}

namespace {

void fill_integers(const TensorView& view, std::int64_t value) {
  std::fill_n(view.as<std::int32_t>(), view.count(), static_cast<std::int32_t>(value));
}

}  // namespace

// Rows begin with the frames of the clips, as many as fit.
void SalmFamily::fill(const ModelConfig& config, const BatchShape& shape, ModelBatch& batch) const {
  const FastConformerConfig& encoder = config.as<SalmConfig>().encoder;
  fill_integers(batch["audio_lengths"], shape.audio_samples);
  for (int stage = 0; stage <= encoder.stages(); ++stage)
    fill_integers(batch["frame_lengths"].slice(stage, 1),
                  encoder.lengths_after(stage, shape.audio_samples));
  for (std::int64_t clip = 0; clip < shape.clips; ++clip)
    batch["sample_ids"].as<std::int64_t>()[clip] = clip;
  for (std::int64_t row = 0; row < shape.samples; ++row)
    batch["conversation_ids"].as<std::int64_t>()[row] = row;
  const std::int64_t cells = shape.samples * shape.tokens;
  const std::int64_t rows =
      shape.clips * config.as<SalmConfig>().clip_rows().rows(shape.audio_samples);
  for (std::int64_t at = 0; at < std::min(cells, rows); ++at)
    batch["index"].as<std::int32_t>()[at] = static_cast<std::int32_t>(-1 - at);
}

ops::BenchShape SalmFamily::op_shape(const ModelConfig& config, const BatchShape& shape) const {
  const auto& c = config.as<SalmConfig>();
  ops::BenchShape ops = DecoderTower::op_shape(c.lm, shape);
  ops.speech = EncoderTower::op_shape(c.encoder, shape.clips, shape.audio_samples);
  return ops;
}

void SalmFamily::clear(ModelBatch& batch) const {
  for (const char* lengths : {"audio_lengths", "frame_lengths", "index"})
    fill_integers(batch[lengths], 0);
  fill_integers(batch["targets"], -1);
}

std::unique_ptr<TrainingData> SalmFamily::open_data(const Deck& deck, const BatchSizes& batch,
                                                    Mesh& mesh, Logger& log) const {
  if (deck.data.format != "synthetic")
    return std::make_unique<SalmTrainingData>(deck, batch, mesh, log);
  const SalmConfig config = model(deck).as<SalmConfig>();
  return std::make_unique<SyntheticData>(
      std::make_unique<SyntheticConversations>(static_cast<std::uint64_t>(deck.run.seed), config),
      config, batch,
      fmt::format("random conversations about noise with a vocabulary of {}, nothing is read; {} "
                  "micro-batches a step",
                  config.vocab_size, deck.train.micro_batches));
}

std::unique_ptr<EvaluationData> SalmFamily::open_evaluation(const Deck& deck,
                                                            const std::string& vocabulary,
                                                            Mesh& mesh, Logger& log) const {
  if (deck.data.format != "synthetic")
    return std::make_unique<SalmEvaluationData>(deck, vocabulary, mesh);
  return ModelFamily::open_evaluation(deck, vocabulary, mesh, log);
}

std::unique_ptr<SyntheticBatches> SalmFamily::synthetic_batches(const ModelConfig& config,
                                                                std::uint64_t seed,
                                                                std::int64_t) const {
  return std::make_unique<SyntheticConversations>(seed, config.as<SalmConfig>());
}

void SalmFamily::check_start(const Deck&, const std::vector<StartingPoint>& points,
                             const std::string& vocabulary) const {
  if (vocabulary.empty()) return;
  const std::uint64_t ours = Vocabulary::from_json(vocabulary, "the conversations").hash();
  for (const StartingPoint& point : points)
    if (point.pattern.starts_with("lm.") && !point.vocabulary.empty() &&
        Vocabulary::from_json(point.vocabulary, point.checkpoint).hash() != ours)
      throw DeckError(
          fmt::format("checkpoint.init_from: {} has another vocabulary than the conversations, so "
                      "their ids would have other meanings",
                      point.checkpoint),
          "tokenize the conversations with its vocabulary: `choir prepare chat --tokenizer FILE`");
}

void SalmFamily::evaluate_once(ModelInstance& instance, const ModelBatch& batch) const {
  instance.loss_sum(batch);
  SalmGenerator(instance).rehearse(batch);
}

}  // namespace choir
