#include "choir/models/gpt/token_bench.hpp"

#include "choir/infer/model_instance.hpp"
#include "choir/models/gpt/gpt.hpp"
#include "choir/models/gpt/gpt_settings.hpp"
#include "choir/models/gpt/token_data.hpp"

namespace choir {

std::int64_t matmul_weights(const GptConfig& c) {
  const std::int64_t qkv = c.n_embd * c.head_width() * (c.n_head + 2 * c.n_kv_head);
  const std::int64_t output = c.n_embd * c.attention_width();
  const std::int64_t ffn = c.n_embd * c.ffn_width * (1 + ops::activation_inputs(c.activation));
  return c.n_layer * (qkv + output + ffn) + c.vocab_size * c.n_embd;
}

StepWork step_work(const GptConfig& c, const Precision& precision, std::int64_t sequences,
                   std::int64_t parameters) {
  const auto tokens = static_cast<double>(sequences * c.block_size);
  double pairs = 0;
  for (std::int64_t layer = 0; layer < c.n_layer; ++layer) pairs += c.visible_pairs(layer);
  pairs *= static_cast<double>(sequences * c.n_head);
  StepWork work = update_work(precision, parameters);
  work.gemm_flops = 6.0 * static_cast<double>(matmul_weights(c)) * tokens;
  work.attention_flops = 12.0 * static_cast<double>(c.head_width()) * pairs;
  return work;
}

TokenBenchBatches::TokenBenchBatches(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                     Logger& log)
    : data_(open_data(deck, batch.micro, mesh, log)),
      batch_(batch),
      tokens_(static_cast<double>(batch.global * gpt_of(deck).block_size)) {}

void TokenBenchBatches::start(const Sharding& sharding) {
  data_->start_training(micro_batch_order(sharding, batch_.accum, 0));
}

ModelBatch TokenBenchBatches::micro_batch(std::int64_t, std::int64_t) {
  return token_batch(data_->next());
}

double TokenBenchBatches::flops(std::int64_t, ModelInstance& instance) const {
  return instance.as<Gpt>().flops_per_token() * tokens_;
}

StepWork TokenBenchBatches::work(const EngineOptions& options, ModelInstance& instance,
                                 double parts) const {
  StepWork work = step_work(options.model.as<GptConfig>(), options.precision,
                            batch_.micro * batch_.accum, instance.storage().slices_size());
  work.gemm_flops /= parts;
  work.attention_flops /= parts;
  return work;
}

}  // namespace choir
