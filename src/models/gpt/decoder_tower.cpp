#include "choir/models/gpt/decoder_tower.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "choir/device/profile_range.hpp"
#include "choir/nn/axes/tensor_axis.hpp"
#include "choir/ops/embedding.hpp"
#include "choir/ops/reduce.hpp"
#include "choir/ops/rope.hpp"
#include "src/models/logits.hpp"
#include "src/models/piece_walk.hpp"

namespace choir {
namespace {

/// The stream as the norm that reads it would add it up.
Tensor joined(Pass& pass, ResidualStream stream) {
  if (stream.delta.empty()) return std::move(stream.residual);
  const Tensor sum = stream.delta.sole_owner()
                         ? stream.delta
                         : pass.allocate(stream.delta.shape, "residual between pieces");
  ops::add(pass.stream(), stream.residual, stream.delta, sum);
  return sum;
}

}  // namespace

std::int64_t DecoderTower::first_id() const {
  return tokens_->split.rank * tokens_->local[0];
}

Shape DecoderTower::rope_table_shape() const {
  if (config_.position != Position::rope || blocks_.empty()) return {0};
  return {config_.block_size, config_.head_width()};
}

std::size_t DecoderTower::table_bytes(const Precision& precision) const {
  return static_cast<std::size_t>(rope_table_shape().count()) * size_of(precision.statistic);
}

void DecoderTower::prepare(Pass& pass, void* memory) {
  rope_table_ = {memory, pass.precision().statistic, rope_table_shape()};
  if (rope_table_.count() > 0)
    ops::rope_table(pass.stream(), config_.rope_theta, rope_table_, config_.rope_scaling);
}

namespace {

TensorView positions_in_document(const Sequence& sequence) {
  return {const_cast<std::int32_t*>(sequence.positions_in_document), DType::i32, {sequence.rows()}};
}

}  // namespace

Tensor DecoderTower::embed(Pass& pass, const TensorView& ids, bool trained, BucketHooks& hooks,
                           const AddRows& add_rows) {
  const ProfileRange range(pass.stream(), "embedding");
  const Sequence& sequence = pass.sequence();
  const Pass::Unsaved below(pass, !trained);
  const bool has_positions = positions_ != nullptr && pass.tensor().rank() == 0;
  const bool adds_positions = has_positions && sequence.document_positions == 0;
  hooks.acquire(tokens_->bucket);
  if (positions_) hooks.acquire(positions_->bucket);
  Tensor terms = allocate_terms(pass, config_.n_embd, "embedding");
  const TensorView all_ids = ids.reshaped({sequence.rows()});
  for (int i = 0; i < sequence.runs(); ++i) {
    const Sequence::Run run = sequence.run(i);
    ops::embedding_forward(pass.stream(),
                           {.ids = all_ids.slice(run.first_row, run.rows),
                            .table = tokens_->value,
                            .positions = adds_positions ? positions_->value : TensorView{},
                            .tokens = run.tokens,
                            .first_position = run.first_position,
                            .out = terms.slice(run.first_row, run.rows),
                            .first_id = first_id(),
                            .vocabulary = config_.vocab_size,
                            .position_end = sequence.position_end(),
                            .spliced = options_.spliced});
  }
  if (has_positions && !adds_positions)
    ops::embedding_forward(pass.stream(), {.ids = positions_in_document(sequence),
                                           .table = positions_->value,
                                           .positions = {},
                                           .out = terms,
                                           .accumulate = true});
  if (add_rows) add_rows(terms);
  if (positions_) hooks.release(positions_->bucket);
  if (!keeps_shared_weight()) hooks.release(tokens_->bucket);
  Tensor x = RowSum(pass, std::move(terms)).wait();
  embedding_dropout_.forward(pass, x);
  return x;
}

Tensor DecoderTower::forward_blocks(Pass& pass, const ModelPieces::Piece& here,
                                    const TrainedUnits& trained, Tensor input,
                                    const ModelBatch* head_batch, BucketHooks& hooks) {
  ResidualStream stream;
  stream.residual = std::move(input);
  choir::forward_blocks(pass, here, blocks_, trained, hooks, [&](TransformerBlock& block) {
    stream = block.forward(pass, stream, rope_table_, hooks);
  });
  return head_batch ? head(pass, std::move(stream), *head_batch, hooks)
                    : joined(pass, std::move(stream));
}

Tensor DecoderTower::head(Pass& pass, ResidualStream stream, const ModelBatch& batch,
                          BucketHooks& hooks) {
  hooks.acquire(final_norm_bucket_);
  if (!keeps_shared_weight()) hooks.acquire(head_bucket_);
  const Tensor normed = final_norm_->forward(pass, stream).normed;
  stream = {};
  const ProfileRange range(pass.stream(), "head and loss");
  const bool generates = pass.mode() == Mode::generate;
  const Tensor rows = generates ? last_positions(pass, normed) : normed;
  const auto finish = [&](const Tensor& of_tokens) {
    return beside_ ? beside_->forward(pass, rows, of_tokens, batch, hooks) : of_tokens;
  };
  const Tensor logits = head_->forward(pass, rows);
  if (!keeps_head(pass)) release_head(hooks);
  if (generates)
    return finish(without_padding(pass, gather_columns(pass, logits), config_.vocab_size));
  Tensor losses = pass.allocate_statistic({pass.sequence().rows()}, "losses");
  token_losses(pass,
               {.logits = logits,
                .targets = batch[options_.targets],
                .losses = losses,
                .vocabulary = config_.vocab_size,
                .scale = batch.scale,
                .device_scale = batch.device_scale(),
                .write_gradient = pass.training(),
                .label_smoothing = pass.training() ? config_.label_smoothing : 0,
                .weights = options_.weights.empty() ? TensorView{} : batch[options_.weights]},
               first_id());
  pass.save(logits);  // now their gradient
  return finish(losses);
}

void DecoderTower::release_head(BucketHooks& hooks) const {
  hooks.release(head_bucket_);
  hooks.release(final_norm_bucket_);
}

Tensor DecoderTower::backward_blocks(Pass& pass, const ModelPieces::Piece& here,
                                     const TrainedUnits& trained, Tensor d_output,
                                     BucketHooks& hooks) {
  Tensor d_stream = here.head ? head_backward(pass, hooks) : std::move(d_output);
  choir::backward_blocks(pass, here, blocks_, trained, hooks, [&](TransformerBlock& block) {
    d_stream = block.backward(pass, std::move(d_stream), rope_table_, hooks);
  });
  return d_stream;
}

Tensor DecoderTower::head_backward(Pass& pass, BucketHooks& hooks) {
  const ProfileRange range(pass.stream(), "head backward");
  const Tensor d_beside = beside_ ? beside_->backward(pass, hooks) : Tensor();
  if (!keeps_head(pass)) {
    hooks.acquire(head_bucket_);
    hooks.acquire(final_norm_bucket_);
  }
  pass.begin_gradients(hooks, head_bucket_);
  const Tensor d_normed = head_->backward(pass, pass.pop());
  if (!d_beside.empty()) ops::add(pass.stream(), d_normed, d_beside, d_normed);
  if (!options_.shares_weight) pass.gradients_ready(hooks, head_bucket_);
  pass.begin_gradients(hooks, final_norm_bucket_);
  Tensor d_stream = final_norm_->backward(pass, d_normed, Tensor());
  pass.gradients_ready(hooks, final_norm_bucket_);
  release_head(hooks);
  return d_stream;
}

Tensor DecoderTower::embedding_rows_backward(Pass& pass, const Tensor& d_stream) const {
  return gather_rows(pass, embedding_dropout_.backward(pass, d_stream));
}

void DecoderTower::embedding_backward(Pass& pass, const Tensor& d_rows, const TensorView& ids,
                                      BucketHooks& hooks) {
  if (!tokens_->trainable && !(positions_ && positions_->trainable)) return;
  if (!options_.shares_weight) pass.begin_gradients(hooks, tokens_->bucket);
  if (positions_) pass.begin_gradients(hooks, positions_->bucket);
  // Behind the shared head's, which overwrites what is in the gradient.
  pass.weight_gradient({&DecoderTower::embedding_gradient, this, Tensor().view(ids), d_rows});
  if (positions_) pass.gradients_ready(hooks, positions_->bucket);
  pass.gradients_ready(hooks, tokens_->bucket);
}

void DecoderTower::embedding_gradient(Pass& pass, void* self, const Tensor& ids,
                                      const Tensor& d_rows) {
  const auto& model = *static_cast<DecoderTower*>(self);
  const Parameter& tokens = *model.tokens_;
  const std::int64_t table = tokens.trainable ? tokens.local.rows() : 1;
  const std::int64_t rows = pass.sequence().rows(), width = model.config_.n_embd;
  const bool documents = model.positions_ && pass.sequence().document_positions > 0;
  std::int64_t bytes = ops::embedding_workspace(pass.stream(), rows, table, width);
  if (documents)
    bytes = std::max(
        bytes, ops::embedding_workspace(pass.stream(), rows, model.config_.block_size, width));
  const Tensor workspace = pass.scratch(bytes, "embedding gradient");
  const TensorView all_ids = ids.reshaped({pass.sequence().rows()});
  for (int i = 0; i < pass.sequence().runs(); ++i) {
    const Sequence::Run run = pass.sequence().run(i);
    ops::embedding_backward(
        pass.stream(),
        {.ids = all_ids.slice(run.first_row, run.rows),
         .d_out = d_rows.slice(run.first_row, run.rows),
         .d_table = tokens.gradient,
         .d_positions = model.positions_ && !documents ? model.positions_->gradient : TensorView{},
         .tokens = run.tokens,
         .first_id = model.first_id(),
         .vocabulary = model.config_.vocab_size,
         .workspace = workspace,
         .first_position = run.first_position,
         .position_end = pass.sequence().position_end(),
         .spliced = model.options_.spliced});
  }
  if (documents)
    ops::embedding_backward(pass.stream(), {.ids = positions_in_document(pass.sequence()),
                                            .d_out = d_rows,
                                            .d_table = model.positions_->gradient,
                                            .d_positions = {},
                                            .workspace = workspace});
}

void DecoderTower::remember(Pass& pass, StreamState& state, std::int64_t positions) const {
  if (positions == 0) positions = config_.block_size;
  for (const Block& block : blocks_) block.module->remember(pass, state, positions);
}

// What a decoder is made of: its parameters in buckets, and the modules of this rank around them.
namespace {

constexpr double kInitStd = 0.02;

ShardSpec vocabulary_shard() {
  return {.split_dim = 0, .alignment = kVocabularyAlignment};
}

ResidualNorm::Options norm_options(const GptConfig& c) {
  return {.kind = c.norm, .bias = c.has_norm_bias(), .eps = c.norm_eps};
}

}  // namespace

DecoderTower::DecoderTower(const GptConfig& config, ParameterSet& parameters,
                           const Options& options)
    : config_(config),
      options_(options),
      parameters_(&parameters),
      embedding_dropout_(options.prefix + "embedding.dropout", config.dropout) {}

void DecoderTower::add_blocks(int first_unit, const ModelPieces& pieces, TrainedUnits& trained) {
  for (std::int64_t i = 0; i < config_.n_layer; ++i) {
    const int unit = first_unit + static_cast<int>(i);
    trained.begin_unit(*parameters_);
    add_block(i, unit, pieces.resident(unit));
  }
}

void DecoderTower::add_embedding(bool resident) {
  parameters_->begin_bucket(options_.prefix + "embedding.tokens", resident);
  tokens_ = &parameters_->add({.name = options_.prefix + "embedding.tokens.weight",
                               .shape = {config_.vocab_size, config_.n_embd},
                               .init = Init::normal(kInitStd),
                               .decay = true,
                               // by the head's GEMM, which comes first
                               .gradient_overwritten = options_.shares_weight,
                               .shard = vocabulary_shard()});
  if (config_.position != Position::learned) return;
  parameters_->begin_bucket(options_.prefix + "embedding.positions", resident);
  positions_ = &parameters_->add({.name = options_.prefix + "embedding.positions.weight",
                                  .shape = {config_.block_size, config_.n_embd},
                                  .init = Init::normal(kInitStd),
                                  .decay = true});
}

void DecoderTower::add_block(std::int64_t layer, int unit, bool resident) {
  const GptConfig& c = config_;
  const std::string name = options_.prefix + "blocks." + std::to_string(layer);
  const double output_std = kInitStd / std::sqrt(2.0 * static_cast<double>(c.n_layer));
  parameters_->begin_bucket(name, resident);
  const int bucket = static_cast<int>(parameters_->buckets().size()) - 1;  // tiles follow
  auto block =
      std::make_unique<TransformerBlock>(*parameters_, name, norm_options(c),
                                         SelfAttention::Options{.width = c.n_embd,
                                                                .heads = c.n_head,
                                                                .kv_heads = c.n_kv_head,
                                                                .head_width = c.head_width(),
                                                                .bias = c.bias,
                                                                .qkv_bias = c.has(c.qkv_bias),
                                                                .head_norm = c.qk_norm,
                                                                .norm_eps = c.norm_eps,
                                                                .window = c.window_of(layer),
                                                                .rope = c.rotates(layer),
                                                                .dropout = c.dropout,
                                                                .output_init_std = output_std,
                                                                .implementation = c.attention,
                                                                .lora = c.lora},
                                         FeedForward::Options{.width = c.n_embd,
                                                              .hidden = c.ffn_width,
                                                              .activation = c.activation,
                                                              .bias = c.bias,
                                                              .dropout = c.dropout,
                                                              .output_init_std = output_std,
                                                              .tiles = c.tile,
                                                              .recompute = c.recompute,
                                                              .lora = c.lora});
  if (resident) blocks_.push_back({std::move(block), bucket, unit});
}

void DecoderTower::add_head(bool resident) {
  parameters_->begin_bucket(options_.prefix + "final_norm", resident);
  final_norm_ = std::make_unique<ResidualNorm>(*parameters_, options_.prefix + "final_norm",
                                               config_.n_embd, norm_options(config_));
  const int buckets = static_cast<int>(parameters_->buckets().size());
  final_norm_bucket_ = buckets - 1;
  head_bucket_ = options_.shares_weight ? tokens_->bucket : buckets;
  if (options_.shares_weight) {
    head_ = std::make_unique<Linear>(*tokens_);
    return;
  }
  parameters_->begin_bucket(options_.prefix + "head", resident);
  if (!config_.tied) {
    head_ = std::make_unique<Linear>(
        *parameters_, options_.prefix + "head", config_.n_embd, config_.vocab_size,
        Linear::Options{.bias = false, .weight_shard = vocabulary_shard()});
    return;
  }
  head_ = std::make_unique<Linear>(parameters_->add({.name = options_.prefix + "head.weight",
                                                     .shape = tokens_->shape,
                                                     .init = tokens_->init,
                                                     .decay = true,
                                                     .gradient_overwritten = true,
                                                     .shard = vocabulary_shard(),
                                                     .tied_to = tokens_}));
}

}  // namespace choir
