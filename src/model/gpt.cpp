#include "choir/model/gpt.hpp"

#include <cmath>
#include <utility>

#include "choir/core/clock.hpp"
#include "choir/device/profile_range.hpp"
#include "choir/ops/copy_rows.hpp"
#include "choir/ops/cross_entropy.hpp"
#include "choir/ops/embedding.hpp"
#include "choir/ops/reduce.hpp"
#include "choir/ops/rope.hpp"

namespace choir {
namespace {

constexpr double kInitStd = 0.02;
// Bucket numbers: 0 the embedding, 1 + i block i, last the final norm (and an untied head).
constexpr int kEmbeddingBucket = 0;
// Columns of logits of a rank: rows begin at 16 bytes.
ShardSpec vocabulary_shard() {
  return {.split_dim = 0, .alignment = 8};
}

/// The three calls and what is reduced between them.
void parallel_cross_entropy(Pass& pass, ops::ParallelCrossEntropy call) {
  const std::int64_t rows = pass.sequence().rows();
  Communicator& ranks = *pass.tensor().communicator;
  const Tensor local = pass.allocate_statistic({rows}, "maxima");
  const Tensor maxima = pass.allocate_statistic({rows}, "maxima");
  const Tensor sums = pass.allocate_statistic({rows, call.sums_per_row()}, "sums of exponentials");
  call.local_maxima = local;
  call.maxima = maxima;
  call.sums = sums;
  ops::cross_entropy_maxima(pass.stream(), call);
  ranks.all_reduce(maxima.data, static_cast<std::size_t>(rows), maxima.dtype, ReduceOp::max);
  ops::cross_entropy_sums(pass.stream(), call);
  ranks.all_reduce(sums.data, static_cast<std::size_t>(sums.count()), sums.dtype, ReduceOp::sum,
                   pass.tensor().order);
  ops::cross_entropy_finish(pass.stream(), call);
}

/// [B, n] of each rank -> [B, ranks * n] on all of them.
Tensor gather_columns(Pass& pass, const Tensor& part) {
  const TensorAxis& axis = pass.tensor();
  if (axis.size() == 1) return part;
  const std::int64_t rows = part.shape.rows(), n = part.shape.back();
  const Tensor parts = pass.allocate({axis.size() * rows, n}, "logits of all ranks");
  ops::copy(pass.stream(), part, parts.slice(axis.rank() * rows, rows));
  axis.communicator->all_gather(parts.data, static_cast<std::size_t>(part.count()), part.dtype);
  if (rows == 1) return parts.reshaped({1, axis.size() * n});
  Tensor whole = pass.allocate({rows, axis.size() * n}, "logits");
  for (std::int64_t r = 0; r < axis.size(); ++r)
    ops::copy_rows(pass.stream(), part.dtype, rows, n, {parts.slice(r * rows, rows).data, n},
                   {static_cast<std::byte*>(whole.data) +
                        static_cast<std::size_t>(r * n) * size_of(part.dtype),
                    axis.size() * n});
  return whole;
}

}  // namespace

Gpt::Gpt(const GptConfig& c, ParameterSet& parameters)
    : config_(c), parameters_(&parameters), embedding_dropout_("embedding.dropout", c.dropout) {
  parameters.begin_bucket("embedding");
  tokens_ = &parameters.add({.name = "embedding.tokens.weight",
                             .shape = {c.vocab_size, c.n_embd},
                             .init = Init::normal(kInitStd),
                             .decay = true,
                             .gradient_overwritten = c.tied,  // the head's GEMM comes first
                             .shard = vocabulary_shard()});
  if (c.position == Position::learned)
    positions_ = &parameters.add({.name = "embedding.positions.weight",
                                  .shape = {c.block_size, c.n_embd},
                                  .init = Init::normal(kInitStd),
                                  .decay = true});
  const double output_std = kInitStd / std::sqrt(2.0 * static_cast<double>(c.n_layer));
  const ResidualNorm::Options norm{.kind = c.norm, .bias = c.bias, .eps = c.norm_eps};
  for (std::int64_t i = 0; i < c.n_layer; ++i) {
    const std::string name = "blocks." + std::to_string(i);
    parameters.begin_bucket(name);
    blocks_.push_back(std::make_unique<TransformerBlock>(
        parameters, name, norm,
        SelfAttention::Options{.width = c.n_embd,
                               .heads = c.n_head,
                               .kv_heads = c.n_kv_head,
                               .bias = c.bias,
                               .rope = c.position == Position::rope,
                               .dropout = c.dropout,
                               .output_init_std = output_std,
                               .layer = static_cast<int>(i),
                               .implementation = c.attention},
        FeedForward::Options{.width = c.n_embd,
                             .hidden = c.ffn_width,
                             .activation = c.activation,
                             .bias = c.bias,
                             .dropout = c.dropout,
                             .output_init_std = output_std}));
  }
  parameters.begin_bucket("head");
  final_norm_ = std::make_unique<ResidualNorm>(parameters, "final_norm", c.n_embd, norm);
  head_ = c.tied ? std::make_unique<Linear>(*tokens_)
                 : std::make_unique<Linear>(
                       parameters, "head", c.n_embd, c.vocab_size,
                       Linear::Options{.bias = false, .weight_shard = vocabulary_shard()});
}

Shape Gpt::rope_table_shape() const {
  if (config_.position != Position::rope) return {0};
  return {config_.block_size, config_.head_width()};
}

void Gpt::prepare(Pass& pass, const TensorView& rope_table) {
  rope_table_ = rope_table;
  if (config_.position == Position::rope)
    ops::rope_table(pass.stream(), config_.rope_theta, rope_table_);
}

ResidualStream Gpt::embed(Pass& pass, const TensorView& ids) {
  const ProfileRange range(pass.stream(), "embedding");
  const Sequence& sequence = pass.sequence();
  const bool adds_positions = positions_ != nullptr && pass.tensor().rank() == 0;
  Tensor terms = allocate_terms(pass, config_.n_embd, "embedding");
  ops::embedding_forward(pass.stream(),
                         {.ids = ids,
                          .table = tokens_->value,
                          .positions = adds_positions ? positions_->value : TensorView{},
                          .tokens = sequence.tokens,
                          .first_position = sequence.first_position,
                          .out = terms,
                          .first_id = first_id(),
                          .vocabulary = config_.vocab_size});
  Tensor x = RowSum(pass, std::move(terms)).wait();
  embedding_dropout_.forward(pass, x);
  return {std::move(x), Tensor()};
}

Tensor Gpt::trunk(Pass& pass, const TensorView& ids, BucketHooks& hooks) {
  hooks.acquire(kEmbeddingBucket);
  ResidualStream stream = embed(pass, ids);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const int bucket = static_cast<int>(i) + 1;
    hooks.acquire(bucket);
    stream = blocks_[i]->forward(pass, stream, rope_table_);
    hooks.release(bucket);
  }
  hooks.acquire(static_cast<int>(blocks_.size()) + 1);
  return final_norm_->forward(pass, stream).normed;
}

Tensor Gpt::loss(Pass& pass, const TensorView& ids, const TensorView& targets, double scale,
                 BucketHooks& hooks, const double* device_scale) {
  const Tensor normed = trunk(pass, ids, hooks);
  const ProfileRange range(pass.stream(), "head and loss");
  Tensor logits = head_->forward(pass, normed);
  Tensor losses = pass.allocate_statistic({pass.sequence().rows()}, "losses");
  if (pass.tensor().size() > 1)
    parallel_cross_entropy(pass, {.logits = logits,
                                  .targets = targets,
                                  .losses = losses,
                                  .vocabulary = pass.breaks(NegativeControl::padding_leaks)
                                                    ? logits.shape.back() * pass.tensor().size()
                                                    : config_.vocab_size,
                                  .first_column = first_id(),
                                  .scale = scale,
                                  .device_scale = device_scale,
                                  .write_gradient = pass.training()});
  else
    ops::cross_entropy(pass.stream(), {.logits = logits,
                                       .targets = targets,
                                       .losses = losses,
                                       .vocabulary = config_.vocab_size,
                                       .scale = scale,
                                       .device_scale = device_scale,
                                       .write_gradient = pass.training()});
  pass.save(logits);  // now their gradient
  return losses;
}

std::int64_t Gpt::first_id() const {
  return tokens_->split.rank * tokens_->local[0];
}

void Gpt::backward(Pass& pass, const TensorView& ids, BucketHooks& hooks) {
  const int last = static_cast<int>(blocks_.size()) + 1;
  Tensor d_stream;
  {
    const ProfileRange range(pass.stream(), "head backward");
    const Tensor d_normed = head_->backward(pass, pass.pop());
    d_stream = final_norm_->backward(pass, d_normed, Tensor());
  }
  hooks.gradients_ready(last);
  hooks.release(last);
  for (int bucket = last - 1; bucket > kEmbeddingBucket; --bucket) {
    hooks.acquire(bucket);
    d_stream = blocks_[static_cast<std::size_t>(bucket - 1)]->backward(pass, std::move(d_stream),
                                                                       rope_table_);
    hooks.gradients_ready(bucket);
    hooks.release(bucket);
  }
  // Queued behind the tied head's, which overwrites what is in the gradient.
  pass.weight_gradient({&Gpt::embedding_gradient, this, Tensor().view(ids),
                        gather_rows(pass, embedding_dropout_.backward(pass, d_stream))});
  hooks.gradients_ready(kEmbeddingBucket);
  hooks.release(kEmbeddingBucket);
}

void Gpt::embedding_gradient(Pass& pass, void* self, const Tensor& ids, const Tensor& d_embedding) {
  const auto& model = *static_cast<Gpt*>(self);
  const Tensor workspace = pass.scratch(
      ops::embedding_workspace(pass.stream(), pass.sequence().rows(),
                               model.tokens_->gradient.shape.rows(), model.config_.n_embd),
      "embedding gradient");
  ops::embedding_backward(
      pass.stream(), {.ids = ids,
                      .d_out = d_embedding,
                      .d_table = model.tokens_->gradient,
                      .d_positions = model.positions_ ? model.positions_->gradient : TensorView{},
                      .tokens = pass.sequence().tokens,
                      .first_id = model.first_id(),
                      .vocabulary = model.config_.vocab_size,
                      .workspace = workspace});
}

Tensor Gpt::next_logits(Pass& pass, const TensorView& ids) {
  BucketHooks everything_resident;
  const Tensor normed = trunk(pass, ids, everything_resident);
  const Sequence& sequence = pass.sequence();
  const std::int64_t width = config_.n_embd;
  Tensor last = pass.allocate({sequence.batch, width}, "last position");
  auto* data = static_cast<std::byte*>(normed.data);
  const std::int64_t first = (sequence.tokens - 1) * width;
  ops::copy_rows(
      pass.stream(), normed.dtype, sequence.batch, width,
      {data + static_cast<std::size_t>(first) * size_of(normed.dtype), sequence.tokens * width},
      {last.data, width});
  return gather_columns(pass, head_->forward(pass, last));
}

std::int64_t Gpt::kv_heads_of_rank() const {
  return SelfAttention::heads_of_rank(config_.n_kv_head, parameters_->tensor());
}

std::int64_t Gpt::parameters_without_positions() const {
  return parameters_->count() - (positions_ ? positions_->count() : 0);
}

double Gpt::flops_per_token() const {
  return 6.0 * static_cast<double>(parameters_without_positions()) +
         12.0 * static_cast<double>(config_.n_layer * config_.n_embd * config_.block_size);
}

std::string Gpt::describe() const {
  std::string text;
  for (const Bucket& bucket : parameters_->buckets()) {
    // Blocks are alike: the first one speaks for all.
    if (bucket.name.starts_with("blocks.") && bucket.name != "blocks.0") continue;
    std::int64_t count = 0;
    for (const Parameter* p : bucket.parameters) count += p->count();
    text += fmt::format("  {:<34} {:>14} parameters{}\n", bucket.name, format_count(count),
                        bucket.name == "blocks.0" && config_.n_layer > 1
                            ? fmt::format(" (and {} alike)", config_.n_layer - 1)
                            : "");
    for (const Parameter* p : bucket.parameters)
      text += fmt::format("    {:<32} {:>14}  {}{}\n", p->name, to_string(p->shape),
                          p->decay ? "decay" : "",
                          config_.tied && p == tokens_ ? ", tied to the head" : "");
  }
  return text;
}

}  // namespace choir
