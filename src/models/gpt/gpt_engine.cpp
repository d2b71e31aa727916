// GptFamily: the model, its micro-batches and its runs.
#include "choir/infer/model_instance.hpp"
#include "choir/models/gpt/generator.hpp"
#include "choir/models/gpt/token_bench.hpp"
#include "src/models/gpt/chat_data.hpp"
#include "src/models/gpt/gpt_family.hpp"
#include "src/models/gpt/synthetic_tokens.hpp"
#include "src/models/gpt/token_training_data.hpp"

namespace choir {

ModelBatch token_batch(std::int64_t samples, const TensorView& inputs, const TensorView& targets,
                       std::int64_t first_sample) {
  ModelBatch batch;
  batch.samples = samples;
  batch.tokens = inputs.count() / samples;
  batch.first_sample = first_sample;
  batch.add({.name = "inputs", .view = inputs, .shared = Shared::positions, .padding = 0});
  if (targets.shape.rank() > 0)
    batch.add({.name = "targets",
               .view = targets,
               .shared = Shared::positions,
               .padding = kIgnoredTarget});
  return batch;
}

void add_documents(ModelBatch& batch, const TensorView& begins, const TensorView& positions) {
  batch.add({.name = kDocumentBegins, .view = begins});
  batch.add({.name = kDocumentPositions, .view = positions, .shared = Shared::positions});
}

const ModelFamily& gpt_family() {
  static const GptFamily kFamily;
  return kFamily;
}

const ModelFamily& family_of(const GptConfig&) {
  return gpt_family();
}

UnitCosts GptFamily::unit_costs(const ModelConfig& config) const {
  const auto& gpt = config.as<GptConfig>();
  return Gpt::unit_costs(gpt, gpt.block_size);
}

std::vector<TiedNames> GptFamily::tied(const ModelConfig& config) const {
  if (!config.as<GptConfig>().tied) return {};
  return {{.name = "embedding.tokens.weight", .alias = "head.weight"}};
}

std::vector<KeyProblem> GptFamily::check_tensor_size(const ModelConfig& config,
                                                     std::int64_t ranks) const {
  return choir::check_tensor_size(config.as<GptConfig>(), ranks);
}

std::int64_t GptFamily::query_heads(const ModelConfig& config) const {
  return config.as<GptConfig>().n_head;
}

std::string GptFamily::describe(const ModelConfig& config) const {
  const auto& gpt = config.as<GptConfig>();
  return fmt::format(
      "{} layers of {}, {} heads ({} of keys and values), vocabulary {}, blocks of "
      "{}, dropout {}, {}",
      gpt.n_layer, gpt.n_embd, gpt.n_head, gpt.n_kv_head, gpt.vocab_size, gpt.block_size,
      gpt.dropout, gpt.tied ? "tied" : "not tied");
}

BatchShape GptFamily::shape(const ModelConfig& config, std::int64_t samples) const {
  return {.samples = samples, .tokens = config.as<GptConfig>().block_size};
}

ModelBatch GptFamily::fields(const ModelConfig& config, const BatchShape& shape) const {
  const TensorView tokens{nullptr, DType::i32, {shape.samples * shape.tokens}};
  ModelBatch batch = token_batch(shape.samples, tokens, tokens);
  if (config.as<GptConfig>().packed) add_documents(batch, tokens, tokens);
  return batch;
}

ops::BenchShape GptFamily::op_shape(const ModelConfig& config, const BatchShape& shape) const {
  return DecoderTower::op_shape(config.as<GptConfig>(), shape);
}

std::unique_ptr<TrainingData> GptFamily::open_data(const Deck& deck, const BatchSizes& batch,
                                                   Mesh& mesh, Logger& log) const {
  if (trains_on_chat(deck, mesh)) return std::make_unique<ChatTrainingData>(deck, batch, mesh, log);
  return std::make_unique<TokenTrainingData>(deck, batch, mesh, log);
}

std::unique_ptr<EvaluationData> GptFamily::open_evaluation(const Deck& deck,
                                                           const std::string& vocabulary,
                                                           Mesh& mesh, Logger& log) const {
  if (trains_on_chat(deck, mesh))
    return std::make_unique<ChatEvaluationData>(deck, vocabulary, mesh);
  return std::make_unique<TokenEvaluationData>(deck, vocabulary, mesh, log);
}

std::unique_ptr<SyntheticBatches> GptFamily::synthetic_batches(const ModelConfig& config,
                                                               std::uint64_t seed,
                                                               std::int64_t samples) const {
  const auto& gpt = config.as<GptConfig>();
  return std::make_unique<SyntheticTokens>(seed, samples, gpt.block_size, gpt.vocab_size,
                                           gpt.packed);
}

std::unique_ptr<BenchBatches> GptFamily::bench_batches(const Deck& deck, const BatchSizes& batch,
                                                       Mesh& mesh, Logger& log,
                                                       const BenchAudio&) const {
  return std::make_unique<TokenBenchBatches>(deck, batch, mesh, log);
}

bool GptFamily::writes_samples(const Deck& deck) const {
  return gpt_settings(deck).sample_tokens > 0;
}

void GptFamily::sample_once(ModelInstance& instance) const {
  Generator(instance).plan(1);
}

}  // namespace choir
