// What a Gpt says about itself.
#include <algorithm>

#include "choir/core/clock.hpp"
#include "choir/model/gpt.hpp"

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
  std::string text;
  for (const Bucket* bucket : parameters_->model_buckets()) {
    // Blocks are alike: the first one speaks for all. Tensors in tiles count as its own.
    if (bucket->tile > 0) continue;
    const std::string inside = bucket->name + ".";
    const bool block = bucket->name.starts_with("blocks.");
    if (block && bucket->name != "blocks.0") continue;
    std::vector<const Parameter*> tensors(bucket->parameters.begin(), bucket->parameters.end());
    for (const Parameter* p : parameters_->all())
      if ((p->shard.tiles > 1 || !p->trainable) && p->name.starts_with(inside) &&
          std::find(tensors.begin(), tensors.end(), p) == tensors.end())
        tensors.push_back(p);
    std::stable_sort(tensors.begin(), tensors.end(), [](const Parameter* a, const Parameter* b) {
      return a->position < b->position;
    });
    std::int64_t count = 0;
    for (const Parameter* p : tensors) count += p->count();
    text += fmt::format(
        "  {:<34} {:>14} parameters{}\n", bucket->name, format_count(count),
        block && config_.n_layer > 1 ? fmt::format(" (and {} alike)", config_.n_layer - 1) : "");
    for (const Parameter* p : tensors)
      text += fmt::format(
          "    {:<32} {:>14}  {}{}{}\n", p->name, to_string(p->shape), p->decay ? "decay" : "",
          config_.tied && p == tokens_ ? ", tied to the head" : "",
          p->shard.tiles > 1 ? fmt::format("{}in {} tiles", p->decay ? ", " : "", p->shard.tiles)
                             : "");
  }
  return text;
}

}  // namespace choir
