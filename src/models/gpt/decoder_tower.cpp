#include "src/models/gpt/decoder_tower.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "choir/device/device.hpp"
#include "choir/models/logits.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/rope/rope.hpp"
#include "kernels/sums/sums.hpp"
#include "src/models/token_losses.hpp"

namespace choir {

ops::BenchShape DecoderTower::op_shape(const GptConfig& config, const BatchShape& shape) {
  return {.rows = shape.samples * shape.tokens,
          .width = config.n_embd,
          .hidden = config.ffn_width,
          .vocabulary = config.vocab_size,
          .tokens = shape.tokens,
          .head_width = config.head_width()};
}

Shape DecoderTower::rope_table_shape() const {
  if (config_.position != Position::rope || blocks_.all().empty()) return {0};
  return {config_.has_local_angles() ? 2 : 1, config_.block_size, config_.rotated_width()};
}

std::size_t DecoderTower::table_bytes(const Precision& precision) const {
  return static_cast<std::size_t>(rope_table_shape().count()) * size_of(precision.statistic);
}

void DecoderTower::prepare(Pass& pass, void* memory) {
  rope_table_ = {memory, pass.precision().statistic, rope_table_shape()};
  if (rope_table_.count() > 0) compute_angles(pass, rope_table_, 0);
}

std::vector<double> rope_factors(const std::vector<std::string>& list) {
  std::vector<double> numbers;
  for (const std::string& text : list) {
    const char* const end = text.data() + text.size();
    double number = 0;
    const auto [stop, problem] = std::from_chars(text.data(), end, number);
    const bool good = problem == std::errc() && stop == end && number > 0 && std::isfinite(number);
    numbers.push_back(good ? number : 0);
  }
  return numbers;
}

ops::RopeScaling angle_scaling(const GptConfig& c) {
  ops::RopeScaling scaling = c.rope_scaling;
  if (scaling.kind != ops::RopeScaling::Kind::longrope) return scaling;
  const bool is_long = static_cast<double>(c.block_size) > scaling.original;
  scaling.divisors = rope_factors(is_long ? c.rope_long_factors : c.rope_short_factors);
  return scaling;
}

void DecoderTower::compute_angles(Pass& pass, const TensorView& tables, std::int64_t first) const {
  const GptConfig& c = config_;
  const Shape one{tables.shape[1], tables.shape[2]};
  const ops::RopeScaling scaling = angle_scaling(c);
  ops::rope_table(pass.stream(), c.rope_theta, tables.slice(0, 1).reshaped(one), scaling, first);
  if (tables.shape[0] == 1) return;
  const bool scaled = c.rope_scaling_layers == ScaledLayers::all;
  ops::rope_table(pass.stream(), c.rope_local_theta > 0 ? c.rope_local_theta : c.rope_theta,
                  tables.slice(1, 1).reshaped(one), scaled ? scaling : ops::RopeScaling{}, first);
}

Tensor DecoderTower::angles_of(Pass& pass) const {
  const Sequence& sequence = pass.sequence();
  const bool endless = sequence.state != nullptr && sequence.state->endless();
  if (!endless || rope_table_.count() == 0) return Tensor().view(rope_table_);
  Tensor angles = pass.allocate_statistic(
      {rope_table_.shape[0], sequence.tokens, config_.rotated_width()}, "rotary angles");
  compute_angles(pass, angles, sequence.first_position);
  return angles;
}

Tensor DecoderTower::forward_blocks(Pass& pass, const ModelPieces::Piece& here,
                                    const TrainedUnits& trained, Tensor input,
                                    const ModelBatch* head_batch) {
  const Tensor angles = angles_of(pass);
  ResidualStream stream;
  stream.residual = std::move(input);
  blocks_.forward(pass, here, trained,
                  [&](TransformerBlock& block) { stream = block.forward(pass, stream, angles); });
  return head_batch ? head(pass, std::move(stream), *head_batch) : joined(pass, std::move(stream));
}

Tensor DecoderTower::head(Pass& pass, ResidualStream stream, const ModelBatch& batch) {
  pass.acquire(final_norm_bucket_);
  if (!keeps_shared_weight()) pass.acquire(head_->bucket());
  const Tensor normed = final_norm_->forward(pass, stream).normed;
  stream = {};
  const ProfileRange range(pass.stream(), "head and loss");
  const bool generates = pass.mode() == Mode::generate;
  const Tensor rows = generates ? last_positions(pass, normed) : normed;
  const auto finish = [&](const Tensor& of_tokens) {
    return beside_ ? beside_->forward(pass, rows, of_tokens, batch) : of_tokens;
  };
  if (!generates) return finish(token_losses_of(pass, rows, batch));
  const Tensor logits = head_->forward(pass, rows);
  release_head(pass);
  ops::map_logits(pass.stream(), {config_.logit_scale, config_.logit_softcap}, logits);
  return finish(without_padding(pass, gather_columns(pass, logits), config_.vocab_size));
}

Tensor DecoderTower::token_losses_of(Pass& pass, const Tensor& rows, const ModelBatch& batch) {
  const TokenTargets of{
      .targets = batch[options_.targets],
      .vocabulary = config_.vocab_size,
      .label_smoothing = pass.training() ? config_.label_smoothing : 0,
      .weights = options_.weights.empty() ? TensorView{} : batch[options_.weights],
      .z_loss = config_.z_loss,
      .z_term = options_.z_term,
      .logit_scale = config_.logit_scale,
      .logit_softcap = config_.logit_softcap};
  const std::int64_t chunk = head_chunk(pass);
  if (chunk == 0) {
    const Tensor logits = head_->forward(pass, rows);
    if (!keeps_head(pass)) release_head(pass);
    return token_losses(pass, logits, batch, of);
  }
  if (pass.saves()) {
    // Backward of another micro-batch may have postponed its weight gradients.
    pass.postpone_weight_gradients(false);
    pass.begin_gradients(head_->bucket());
  }
  Tensor losses = chunked_token_losses(pass, *head_, rows, batch, of, chunk);
  if (pass.saves() && !options_.shares_weight) pass.gradients_ready(head_->bucket());
  pass.release(head_->bucket());
  if (!keeps_head(pass)) pass.release(final_norm_bucket_);
  return losses;
}

bool DecoderTower::may_chunk_head(const GptConfig& config) {
  if (config.head_chunk != GptConfig::kAutoChunk) return config.head_chunk > 0;
  return usual_head_chunk(config.vocab_size, DType::f64) > 0;
}

HeadChunk DecoderTower::chunk_of_head(const GptConfig& config, DType logits) {
  HeadChunk chunk{.vocabulary = config.vocab_size,
                  .rows = config.head_chunk,
                  .automatic = config.head_chunk == GptConfig::kAutoChunk};
  if (!chunk.automatic) return chunk;
  chunk.rows = usual_head_chunk(config.vocab_size, logits);
  if (config.head_chunk_limit > 0) chunk.rows = std::min(chunk.rows, config.head_chunk_limit);
  return chunk;
}

std::int64_t DecoderTower::head_chunk(const Pass& pass) const {
  const std::int64_t chunk = chunk_of_head(config_, pass.precision().compute).rows;
  return options_.fixed_rows && pass.sequence().rows() <= chunk ? 0 : chunk;
}

void DecoderTower::release_head(Pass& pass) const {
  pass.release(head_->bucket());
  pass.release(final_norm_bucket_);
}

Tensor DecoderTower::backward_blocks(Pass& pass, const ModelPieces::Piece& here,
                                     const TrainedUnits& trained, Tensor d_output) {
  Tensor d_stream = here.head ? head_backward(pass) : std::move(d_output);
  blocks_.backward(pass, here, trained, [&](TransformerBlock& block) {
    d_stream = block.backward(pass, std::move(d_stream), rope_table_);
  });
  return d_stream;
}

Tensor DecoderTower::head_backward(Pass& pass) {
  const ProfileRange range(pass.stream(), "head backward");
  const Tensor d_beside = beside_ ? beside_->backward(pass) : Tensor();
  const bool whole = head_chunk(pass) == 0;  // otherwise forward has done it
  if (!keeps_head(pass)) {
    if (whole) pass.acquire(head_->bucket());
    pass.acquire(final_norm_bucket_);
  }
  if (whole) pass.begin_gradients(head_->bucket());
  const Tensor d_normed = whole ? head_->backward(pass, pass.pop()) : pass.pop();
  if (!d_beside.empty()) ops::add(pass.stream(), d_normed, d_beside, d_normed);
  if (whole && !options_.shares_weight) pass.gradients_ready(head_->bucket());
  pass.begin_gradients(final_norm_bucket_);
  Tensor d_stream = final_norm_->backward(pass, d_normed, Tensor());
  pass.gradients_ready(final_norm_bucket_);
  if (whole) pass.release(head_->bucket());
  pass.release(final_norm_bucket_);
  return d_stream;
}

void DecoderTower::remember(Pass& pass, StreamState& state, std::int64_t positions) const {
  if (positions == 0) positions = config_.block_size;
  CHOIR_CHECK(!state.endless() || config_.position == Position::rope,
              "an endless stream of a model that has learnt {} positions", config_.block_size);
  for (const auto& block : blocks_.all()) block.module->remember(pass, state, positions);
}

// Construction: the parameters of the decoder in buckets, and the modules of this rank.
namespace {

constexpr double kInitStd = 0.02;

ResidualNorm::Options norm_options(const GptConfig& c) {
  return {.kind = c.norm,
          .bias = c.has_norm_bias(),
          .eps = c.norm_eps,
          .one_plus_weight = c.norm_offset};
}

}  // namespace

DecoderTower::DecoderTower(const GptConfig& config, ParameterSet& parameters,
                           const Options& options)
    : config_(config), options_(options), parameters_(&parameters) {}

void DecoderTower::add_embedding(bool resident) {
  const bool learns = config_.position == Position::learned;
  embedding_ = std::make_unique<TokenEmbedding>(
      *parameters_, options_.prefix + "embedding", resident,
      TokenEmbedding::Options{.vocabulary = config_.vocab_size,
                              .width = config_.n_embd,
                              .positions = learns ? config_.block_size : 0,
                              .init_std = kInitStd,
                              .dropout = config_.dropout,
                              .scale = config_.embedding_scale,
                              .spliced = options_.spliced,
                              .shares_weight = options_.shares_weight,
                              .keeps_weight = keeps_shared_weight()});
}

void DecoderTower::add_blocks(int first_unit, const ModelPieces& pieces, TrainedUnits& trained) {
  blocks_.add(
      *parameters_, pieces, trained, first_unit, options_.prefix + "blocks", config_.n_layer,
      [this](const std::string& name, std::int64_t layer) { return make_block(name, layer); });
}

std::unique_ptr<TransformerBlock> DecoderTower::make_block(const std::string& name,
                                                           std::int64_t layer) const {
  const GptConfig& c = config_;
  const LayerKind kind = c.kind_of(layer);
  const double output_std = kInitStd / std::sqrt(2.0 * static_cast<double>(c.n_layer));
  return std::make_unique<TransformerBlock>(
      *parameters_, name, norm_options(c), BlockForm{c.norm_place, c.parallel_branches},
      SelfAttention::Options{.width = c.n_embd,
                             .heads = c.n_head,
                             .kv_heads = c.n_kv_head,
                             .head_width = c.head_width(),
                             .bias = c.bias,
                             .qkv_bias = c.has(c.qkv_bias),
                             .head_norm = c.qk_norm,
                             .norm_all_heads = c.norms_all_heads(),
                             .norm_eps = c.norm_eps,
                             .one_plus_weight = c.norm_offset,
                             .window = kind.window,
                             .rope = kind.rotates,
                             .rope_table = kind.local ? 1 : 0,
                             .scale = c.attention_scale,
                             .softcap = c.attention_softcap,
                             .dropout = c.dropout,
                             .factor = c.residual_scale,
                             .output_init_std = output_std,
                             .implementation = c.attention,
                             .deterministic = c.attention_deterministic,
                             .lora = c.lora,
                             .tile = c.attention_chunk},
      FeedForward::Options{.width = c.n_embd,
                           .hidden = kind.ffn_width,
                           .activation = c.activation,
                           .gelu_in_product = c.gelu_in_product,
                           .bias = c.bias,
                           .dropout = c.dropout,
                           .output_init_std = output_std,
                           .factor = c.residual_scale,
                           .tiles = c.tile,
                           .recompute = c.recompute,
                           .lora = c.lora});
}

void DecoderTower::add_head(bool resident) {
  final_norm_bucket_ = parameters_->begin_bucket(options_.prefix + "final_norm", resident);
  final_norm_ = std::make_unique<ResidualNorm>(*parameters_, options_.prefix + "final_norm",
                                               config_.n_embd, norm_options(config_));
  Parameter& tokens = embedding_->tokens();
  if (options_.shares_weight) {
    head_ = std::make_unique<Linear>(tokens);
    return;
  }
  parameters_->begin_bucket(options_.prefix + "head", resident);
  if (!config_.tied) {
    head_ = std::make_unique<Linear>(
        *parameters_, options_.prefix + "head", config_.n_embd, config_.vocab_size,
        Linear::Options{.bias = false, .use = Use::other, .weight_shard = vocabulary_shard()});
    return;
  }
  head_ = std::make_unique<Linear>(parameters_->add({.name = options_.prefix + "head.weight",
                                                     .shape = tokens.shape,
                                                     .init = tokens.init,
                                                     .decay = true,
                                                     .gradient_overwritten = true,
                                                     .shard = vocabulary_shard(),
                                                     .tied_to = &tokens}));
}

}  // namespace choir
