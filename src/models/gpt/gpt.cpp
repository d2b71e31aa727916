#include "choir/models/gpt/gpt.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "choir/device/profile_range.hpp"
#include "choir/nn/axes/tensor_axis.hpp"
#include "choir/ops/embedding.hpp"
#include "choir/ops/reduce.hpp"
#include "choir/ops/rope.hpp"
#include "src/models/logits.hpp"
#include "src/models/parameter_table.hpp"
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

std::int64_t Gpt::first_id() const {
  return tokens_->split.rank * tokens_->local[0];
}

Shape Gpt::rope_table_shape() const {
  if (config_.position != Position::rope || blocks_.empty()) return {0};
  return {config_.block_size, config_.head_width()};
}

std::size_t Gpt::table_bytes(const Precision& precision) const {
  return static_cast<std::size_t>(rope_table_shape().count()) * size_of(precision.statistic);
}

void Gpt::prepare(Pass& pass, void* memory) {
  trained_.find(*parameters_);
  rope_table_ = {memory, pass.precision().statistic, rope_table_shape()};
  if (rope_table_.count() > 0)
    ops::rope_table(pass.stream(), config_.rope_theta, rope_table_, config_.rope_scaling);
}

// A part does not tell how long the whole is.
Sequence Gpt::sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
  return share_of_sequences(
      batch.samples,
      context.size() > 1 ? config_.block_size : batch["inputs"].count() / batch.samples, context);
}

Tensor Gpt::embed(Pass& pass, const TensorView& ids, BucketHooks& hooks) {
  const ProfileRange range(pass.stream(), "embedding");
  const Sequence& sequence = pass.sequence();
  const Pass::Unsaved below(pass, !trained_.reach(0));
  const bool adds_positions = positions_ != nullptr && pass.tensor().rank() == 0;
  hooks.acquire(tokens_->bucket);
  if (positions_) hooks.acquire(positions_->bucket);
  Tensor terms = allocate_terms(pass, config_.n_embd, "embedding");
  ops::embedding_forward(pass.stream(),
                         {.ids = ids,
                          .table = tokens_->value,
                          .positions = adds_positions ? positions_->value : TensorView{},
                          .tokens = sequence.tokens,
                          .first_position = sequence.first_position,
                          .out = terms,
                          .first_id = first_id(),
                          .vocabulary = config_.vocab_size,
                          .position_end = sequence.position_end()});
  if (positions_) hooks.release(positions_->bucket);
  if (!keeps_shared_weight()) hooks.release(tokens_->bucket);
  Tensor x = RowSum(pass, std::move(terms)).wait();
  embedding_dropout_.forward(pass, x);
  return x;
}

Tensor Gpt::forward(Pass& pass, int index, Tensor input, const ModelBatch& batch,
                    BucketHooks& hooks) {
  const ModelPieces::Piece& here = pieces_[index];
  begin_forward(pass, index, here, input, boundary_shape(pass, here.first_unit - 1));
  ResidualStream stream;
  stream.residual = here.input ? embed(pass, batch["inputs"], hooks) : std::move(input);
  forward_blocks(pass, here, blocks_, trained_, hooks, [&](TransformerBlock& block) {
    stream = block.forward(pass, stream, rope_table_, hooks);
  });
  return here.head ? head(pass, std::move(stream), batch, hooks) : joined(pass, std::move(stream));
}

Tensor Gpt::head(Pass& pass, ResidualStream stream, const ModelBatch& batch, BucketHooks& hooks) {
  hooks.acquire(final_norm_bucket_);
  if (!keeps_shared_weight()) hooks.acquire(head_bucket_);
  const Tensor normed = final_norm_->forward(pass, stream).normed;
  stream = {};
  const ProfileRange range(pass.stream(), "head and loss");
  const bool generates = pass.mode() == Mode::generate;
  const Tensor logits = head_->forward(pass, generates ? last_positions(pass, normed) : normed);
  if (!keeps_head(pass)) release_head(hooks);
  if (generates) return without_padding(pass, gather_columns(pass, logits), config_.vocab_size);
  Tensor losses = pass.allocate_statistic({pass.sequence().rows()}, "losses");
  token_losses(pass,
               {.logits = logits,
                .targets = batch["targets"],
                .losses = losses,
                .vocabulary = config_.vocab_size,
                .scale = batch.scale,
                .device_scale = batch.device_scale(),
                .write_gradient = pass.training(),
                .label_smoothing = pass.training() ? config_.label_smoothing : 0},
               first_id());
  pass.save(logits);  // now their gradient
  return losses;
}

void Gpt::release_head(BucketHooks& hooks) const {
  hooks.release(head_bucket_);
  hooks.release(final_norm_bucket_);
}

Tensor Gpt::backward(Pass& pass, int index, Tensor d_output, const ModelBatch& batch,
                     BucketHooks& hooks) {
  const ModelPieces::Piece& here = pieces_[index];
  begin_backward(pass, index, here, d_output);
  Tensor d_stream = here.head ? head_backward(pass, hooks) : std::move(d_output);
  backward_blocks(pass, here, blocks_, trained_, hooks, [&](TransformerBlock& block) {
    d_stream = block.backward(pass, std::move(d_stream), rope_table_, hooks);
  });
  if (!here.input) return d_stream;
  if (trained_.reach(0)) embedding_backward(pass, d_stream, batch["inputs"], hooks);
  return {};
}

Tensor Gpt::head_backward(Pass& pass, BucketHooks& hooks) {
  const ProfileRange range(pass.stream(), "head backward");
  if (!keeps_head(pass)) {
    hooks.acquire(head_bucket_);
    hooks.acquire(final_norm_bucket_);
  }
  pass.begin_gradients(hooks, head_bucket_);
  const Tensor d_normed = head_->backward(pass, pass.pop());
  if (!shares_weight_) pass.gradients_ready(hooks, head_bucket_);
  pass.begin_gradients(hooks, final_norm_bucket_);
  Tensor d_stream = final_norm_->backward(pass, d_normed, Tensor());
  pass.gradients_ready(hooks, final_norm_bucket_);
  release_head(hooks);
  return d_stream;
}

void Gpt::embedding_backward(Pass& pass, const Tensor& d_stream, const TensorView& ids,
                             BucketHooks& hooks) {
  const Tensor d_embedding = gather_rows(pass, embedding_dropout_.backward(pass, d_stream));
  if (!shares_weight_) pass.begin_gradients(hooks, tokens_->bucket);
  if (positions_) pass.begin_gradients(hooks, positions_->bucket);
  // Behind the shared head's, which overwrites what is in the gradient.
  if (tokens_->trainable || (positions_ && positions_->trainable))
    pass.weight_gradient({&Gpt::embedding_gradient, this, Tensor().view(ids), d_embedding});
  if (positions_) pass.gradients_ready(hooks, positions_->bucket);
  pass.gradients_ready(hooks, tokens_->bucket);
}

void Gpt::embedding_gradient(Pass& pass, void* self, const Tensor& ids, const Tensor& d_embedding) {
  const auto& model = *static_cast<Gpt*>(self);
  const Parameter& tokens = *model.tokens_;
  const std::int64_t table = tokens.trainable ? tokens.local.rows() : 1;
  const Tensor workspace = pass.scratch(
      ops::embedding_workspace(pass.stream(), pass.sequence().rows(), table, model.config_.n_embd),
      "embedding gradient");
  ops::embedding_backward(
      pass.stream(), {.ids = ids,
                      .d_out = d_embedding,
                      .d_table = tokens.gradient,
                      .d_positions = model.positions_ ? model.positions_->gradient : TensorView{},
                      .tokens = pass.sequence().tokens,
                      .first_id = model.first_id(),
                      .vocabulary = model.config_.vocab_size,
                      .workspace = workspace,
                      .first_position = pass.sequence().first_position,
                      .position_end = pass.sequence().position_end()});
}

Tensor Gpt::through(Pass& pass, const ModelBatch& batch, BucketHooks& hooks) {
  CHOIR_CHECK(pieces_.whole(), "this rank has {} pieces of the model, not all of it", pieces());
  Tensor stream;
  for (int i = 0; i < pieces(); ++i) stream = forward(pass, i, std::move(stream), batch, hooks);
  return stream;
}

Tensor Gpt::loss(Pass& pass, const TensorView& ids, const TensorView& targets, double scale,
                 BucketHooks& hooks, const double* device_scale) {
  ModelBatch batch = token_batch(pass.sequence().batch, ids, targets);
  batch.scale = scale;
  batch.device_scales = device_scale;
  return through(pass, batch, hooks);
}

void Gpt::backward(Pass& pass, const TensorView& ids, BucketHooks& hooks) {
  Tensor d_stream;
  for (int i = pieces() - 1; i >= 0; --i)
    d_stream =
        backward(pass, i, std::move(d_stream), token_batch(pass.sequence().batch, ids), hooks);
}

Tensor Gpt::next_logits(Pass& pass, const TensorView& ids, BucketHooks& hooks) {
  return through(pass, token_batch(pass.sequence().batch, ids), hooks);
}

StreamState Gpt::make_state(Pass& pass, BucketHooks&, std::int64_t streams) const {
  StreamState state(streams);
  for (const Block& block : blocks_) block.module->remember(pass, state, config_.block_size);
  return state;
}

// What a Gpt is made of: its parameters in buckets, and the modules of this rank around them.
namespace {

constexpr double kInitStd = 0.02;

ShardSpec vocabulary_shard() {
  return {.split_dim = 0, .alignment = kVocabularyAlignment};
}

ResidualNorm::Options norm_options(const GptConfig& c) {
  return {.kind = c.norm, .bias = c.has_norm_bias(), .eps = c.norm_eps};
}

}  // namespace

Gpt::Gpt(const GptConfig& c, ParameterSet& parameters, const ModelCut& cut)
    : Model(parameters, cut, c.n_layer),
      config_(c),
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

// What a Gpt says about itself.
namespace {

/// T as formulas count it, which leave the causal mask out; in a window W as much less as it hides
/// of what that mask leaves: W (2 T - W) / T.
double attended_positions(const GptConfig& c, std::int64_t layer) {
  const auto t = static_cast<double>(c.block_size);
  const auto w = static_cast<double>(c.window_of(layer));
  return w > 0 && w < t ? w * (2 * t - w) / t : t;
}

}  // namespace

std::int64_t Gpt::parameters_without_positions() const {
  return parameters_->count() - (positions_ ? positions_->count() : 0);
}

double Gpt::flops_per_token() const {
  const GptConfig& c = config_;
  double attended = 0;  // T of every layer, less what a window hides
  for (std::int64_t layer = 0; layer < c.n_layer; ++layer) attended += attended_positions(c, layer);
  return 6.0 * static_cast<double>(parameters_without_positions()) +
         12.0 * static_cast<double>(c.attention_width()) * attended;
}

UnitCosts Gpt::unit_costs(const GptConfig& c, std::int64_t tokens) {
  const auto n = static_cast<double>(tokens), width = static_cast<double>(c.n_embd);
  const double kv = 2.0 * static_cast<double>(c.n_kv_head * c.head_width());
  const double hidden = static_cast<double>(c.ffn_width);
  const auto heads = static_cast<double>(c.attention_width());
  const double attention_weights = width * (heads + kv) + heads * width;
  const double feed_forward_weights = width * hidden * (ops::activation_inputs(c.activation) + 1);
  UnitCosts costs = alike(n * width * (c.position == Position::learned ? 2 : 1),
                          n * 2 * (attention_weights + feed_forward_weights),
                          n * 2 * width * static_cast<double>(c.vocab_size), c.n_layer);
  // Q K^T and P V: 2 T H D each per token, half of which lies behind the mask.
  for (std::int64_t layer = 0; layer < c.n_layer; ++layer)
    costs[static_cast<std::size_t>(layer) + 1] += n * 2 * heads * attended_positions(c, layer);
  return costs;
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
