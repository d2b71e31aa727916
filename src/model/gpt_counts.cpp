// What a Gpt says about itself.
#include <fmt/core.h>

#include "choir/model/gpt.hpp"
#include "src/model/parameter_table.hpp"

namespace choir {

std::int64_t Gpt::parameters_without_positions() const {
  return parameters_->count() - (positions_ ? positions_->count() : 0);
}

double Gpt::flops_per_token() const {
  return 6.0 * static_cast<double>(parameters_without_positions()) +
         12.0 * static_cast<double>(config_.n_layer * config_.n_embd * config_.block_size);
}

ModelCosts Gpt::unit_costs(const GptConfig& c, std::int64_t tokens) {
  const auto n = static_cast<double>(tokens), width = static_cast<double>(c.n_embd);
  const double kv = 2.0 * static_cast<double>(c.n_kv_head * c.head_width());
  const double hidden = static_cast<double>(c.ffn_width);
  const double attention_weights = width * (width + kv) + width * width;
  const double feed_forward_weights = width * hidden * (ops::activation_inputs(c.activation) + 1);
  // Q K^T and P V: 2 T C each per token, half of which lies behind the mask.
  const double attention = 2.0 * static_cast<double>(c.block_size) * width;
  return {.embedding = n * width * (c.position == Position::learned ? 2 : 1),
          .layer = n * (2 * (attention_weights + feed_forward_weights) + attention),
          .head = n * 2 * width * static_cast<double>(c.vocab_size)};
}

std::string Gpt::describe() const {
  return parameter_table(
      *parameters_, "blocks", config_.n_layer, 32, [this](const Parameter& parameter) {
        std::string note = config_.tied && &parameter == tokens_ ? ", tied to the head" : "";
        if (parameter.shard.tiles > 1)
          note += fmt::format("{}in {} tiles", parameter.decay ? ", " : "", parameter.shard.tiles);
        return note;
      });
}

}  // namespace choir
