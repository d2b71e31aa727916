// What a Gpt is made of: its parameters in buckets, and the modules of this rank around them.
#include <cmath>

#include "choir/model/gpt.hpp"

namespace choir {
namespace {

constexpr double kInitStd = 0.02;

// Columns of logits of a rank: rows begin at 16 bytes.
ShardSpec vocabulary_shard() {
  return {.split_dim = 0, .alignment = 8};
}

ResidualNorm::Options norm_options(const GptConfig& c) {
  return {.kind = c.norm, .bias = c.bias, .eps = c.norm_eps};
}

}  // namespace

Gpt::Gpt(const GptConfig& c, ParameterSet& parameters, const ModelCut& cut)
    : config_(c),
      parameters_(&parameters),
      pieces_(cut, c.n_layer),
      embedding_dropout_("embedding.dropout", c.dropout) {
  shares_weight_ = c.tied && !cut.separate_tied && pieces_.has_input() && pieces_.has_head();
  add_embedding(pieces_.has_input());
  for (std::int64_t i = 0; i < c.n_layer; ++i)
    add_block(i, pieces_.resident(static_cast<int>(i) + 1));
  add_head(pieces_.has_head());
}

void Gpt::add_embedding(bool resident) {
  trained_.begin_unit(*parameters_);
  parameters_->begin_bucket("embedding.tokens", resident);
  tokens_ = &parameters_->add({.name = "embedding.tokens.weight",
                               .shape = {config_.vocab_size, config_.n_embd},
                               .init = Init::normal(kInitStd),
                               .decay = true,
                               // by the head's GEMM, which comes first
                               .gradient_overwritten = shares_weight_,
                               .shard = vocabulary_shard()});
  if (config_.position != Position::learned) return;
  parameters_->begin_bucket("embedding.positions", resident);
  positions_ = &parameters_->add({.name = "embedding.positions.weight",
                                  .shape = {config_.block_size, config_.n_embd},
                                  .init = Init::normal(kInitStd),
                                  .decay = true});
}

void Gpt::add_block(std::int64_t layer, bool resident) {
  const GptConfig& c = config_;
  const std::string name = "blocks." + std::to_string(layer);
  const double output_std = kInitStd / std::sqrt(2.0 * static_cast<double>(c.n_layer));
  trained_.begin_unit(*parameters_);
  parameters_->begin_bucket(name, resident);
  const int bucket = static_cast<int>(parameters_->buckets().size()) - 1;  // tiles follow
  auto block = std::make_unique<TransformerBlock>(
      *parameters_, name, norm_options(c),
      SelfAttention::Options{.width = c.n_embd,
                             .heads = c.n_head,
                             .kv_heads = c.n_kv_head,
                             .bias = c.bias,
                             .rope = c.position == Position::rope,
                             .dropout = c.dropout,
                             .output_init_std = output_std,
                             .layer = static_cast<int>(blocks_.size()),
                             .implementation = c.attention},
      FeedForward::Options{.width = c.n_embd,
                           .hidden = c.ffn_width,
                           .activation = c.activation,
                           .bias = c.bias,
                           .dropout = c.dropout,
                           .output_init_std = output_std,
                           .tiles = c.tile,
                           .recompute = c.recompute});
  if (resident) blocks_.push_back({std::move(block), bucket, static_cast<int>(layer) + 1});
}

void Gpt::add_head(bool resident) {
  trained_.begin_unit(*parameters_);
  parameters_->begin_bucket("final_norm", resident);
  final_norm_ = std::make_unique<ResidualNorm>(*parameters_, "final_norm", config_.n_embd,
                                               norm_options(config_));
  const int buckets = static_cast<int>(parameters_->buckets().size());
  final_norm_bucket_ = buckets - 1;
  head_bucket_ = shares_weight_ ? tokens_->bucket : buckets;
  if (shares_weight_) {
    head_ = std::make_unique<Linear>(*tokens_);
    return;
  }
  parameters_->begin_bucket("head", resident);
  if (!config_.tied) {
    head_ = std::make_unique<Linear>(
        *parameters_, "head", config_.n_embd, config_.vocab_size,
        Linear::Options{.bias = false, .weight_shard = vocabulary_shard()});
    return;
  }
  head_ = std::make_unique<Linear>(parameters_->add({.name = "head.weight",
                                                     .shape = tokens_->shape,
                                                     .init = tokens_->init,
                                                     .decay = true,
                                                     .gradient_overwritten = true,
                                                     .shard = vocabulary_shard(),
                                                     .tied_to = tokens_}));
}

}  // namespace choir
