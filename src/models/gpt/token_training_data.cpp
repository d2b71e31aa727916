#include "src/models/gpt/token_training_data.hpp"

#include <cmath>

#include "choir/models/gpt/generator.hpp"
#include "choir/models/gpt/token_data.hpp"

namespace choir {

TokenTrainingData::TokenTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                     Logger& log)
    : settings_(gpt_settings(deck)),
      seed_(static_cast<std::uint64_t>(deck.run.seed)),
      block_size_(gpt_of(deck).block_size),
      batch_(batch),
      mesh_(mesh),
      log_(log),
      data_(open_data(deck, batch.micro, mesh, log)) {}

std::string TokenTrainingData::vocabulary_json() const {
  const Vocabulary* vocabulary = data_->vocabulary();
  return vocabulary ? vocabulary->to_json() : "";
}

void TokenTrainingData::require_resumable(std::int64_t consumed_samples) const {
  if (consumed_samples % batch_.micro == 0) return;
  throw DeckError(
      fmt::format(
          "the checkpoint has used {} sequences, which is no multiple of the micro-batch size {}",
          consumed_samples, batch_.micro),
      "use the previous train.micro_batch_size, or a divisor of it");
}

void TokenTrainingData::start_training(const Sharding& sharding, std::int64_t per_rank,
                                       const Position& from) {
  data_->start_training(micro_batch_order(sharding, per_rank, from.consumed_samples));
}

ModelBatch TokenTrainingData::next() {
  const Batch& batch = data_->next();
  CHOIR_CHECK(batch.valid == batch.targets.count(), "a training window of {} tokens", batch.valid);
  return token_batch(batch);
}

StepContent TokenTrainingData::content(std::int64_t, const Model& model) {
  return {.samples = static_cast<double>(batch_.global),
          .targets = static_cast<double>(batch_.global * block_size_),
          .flops = model.flops({.samples = batch_.global, .tokens = block_size_})};
}

std::vector<Validation> TokenTrainingData::validate(ModelInstance& instance,
                                                    ProgressLine* progress) {
  return validations(instance, *data_, mesh_, progress);
}

// The ranks that share layers with rank 0 generate together with it.
std::string TokenTrainingData::sample(ModelInstance& instance) {
  if (settings_.sample_tokens == 0) return {};
  // If parameters are sharded, all ranks run the model to provide them.
  const bool all_walk = instance.storage().sharding().values_sharded();
  const bool first =
      mesh_.coordinates()[Axis::data] == 0 && mesh_.coordinates()[Axis::context] == 0;
  if (!first && !all_walk) return {};
  const Vocabulary* vocabulary = data_->vocabulary();
  if (vocabulary == nullptr) return {};
  std::vector<std::int32_t> prompt;
  try {
    prompt = vocabulary->encode(settings_.sample_prompt, "eval.sample_prompt");
  } catch (const DataError& error) {
    if (mesh_.rank() == 0) log_.warn("no text sample: {}", error.what());
    return {};
  }
  const auto tokens = Generator(instance).generate(std::move(prompt), settings_.sample_tokens,
                                                   {.temperature = settings_.sample_temperature,
                                                    .top_k = settings_.sample_top_k,
                                                    .seed = seed_});
  return mesh_.rank() == 0 ? vocabulary->decode(tokens) : "";
}

TokenEvaluationData::TokenEvaluationData(const Deck& deck, const std::string& vocabulary,
                                         Mesh& mesh, Logger& log)
    : mesh_(mesh),
      block_size_(gpt_of(deck).block_size),
      data_(open_data(
          deck, kRows, mesh, log,
          vocabulary.empty() ? 0 : Vocabulary::from_json(vocabulary, "the checkpoint").hash())) {
  if (!data_->has_validation())
    throw DataError("there is no validation data",
                    "name some with data.val='[\"FILE\"]' or data.validation");
}

std::vector<BatchShape> TokenEvaluationData::shapes() const {
  return {{.samples = kRows, .tokens = block_size_}};
}

EvaluationData::Result TokenEvaluationData::evaluate(ModelInstance& instance,
                                                     ProgressLine* progress) {
  const std::vector<Validation> sets = validations(instance, *data_, mesh_, progress);
  const double loss = sets.front().loss;
  std::string metrics = fmt::format("val_loss={:.6f} perplexity={:.4f}", loss, std::exp(loss));
  for (std::size_t i = 1; i < sets.size(); ++i)
    metrics += fmt::format(" val_loss/{}={:.6f}", sets[i].name, sets[i].loss);
  // The first token of a set is not a target.
  return {.lines = {},
          .metrics = metrics + fmt::format(" tokens={}", data_->val_tokens() - data_->eval_sets())};
}

}  // namespace choir
