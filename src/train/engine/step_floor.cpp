#include "choir/train/engine/step_floor.hpp"

namespace choir {

std::int64_t matmul_weights(const GptConfig& c) {
  const std::int64_t qkv = c.n_embd * c.head_width() * (c.n_head + 2 * c.n_kv_head);
  const std::int64_t output = c.n_embd * c.n_embd;
  const std::int64_t ffn = c.n_embd * c.ffn_width * (1 + ops::activation_inputs(c.activation));
  return c.n_layer * (qkv + output + ffn) + c.vocab_size * c.n_embd;
}

StepWork step_work(const GptConfig& c, const Precision& precision, std::int64_t sequences,
                   std::int64_t parameters) {
  const auto tokens = static_cast<double>(sequences * c.block_size);
  const auto pairs = static_cast<double>(sequences * c.n_layer * c.n_head) *
                     static_cast<double>(c.block_size * (c.block_size + 1) / 2);
  StepWork work = update_work(precision, parameters);
  work.gemm_flops = 6.0 * static_cast<double>(matmul_weights(c)) * tokens;
  work.attention_flops = 12.0 * static_cast<double>(c.head_width()) * pairs;
  return work;
}

StepWork update_work(const Precision& precision, std::int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  const auto master = static_cast<double>(size_of(precision.master));
  const auto word = static_cast<double>(size_of(precision.gradient));
  const auto copy = precision.has_copy() ? static_cast<double>(size_of(precision.compute)) : 0.0;
  return {.optimizer_bytes = (2 * master + 5 * word + copy) * count, .norm_bytes = word * count};
}

double floor_seconds(const StepWork& work, const StepRates& rates) {
  return work.flops() / rates.flops_per_second + work.bytes() / rates.bytes_per_second;
}

}  // namespace choir
