#include "choir/model/gpt.hpp"

#include <algorithm>
#include <utility>

#include "choir/device/profile_range.hpp"
#include "choir/ops/embedding.hpp"
#include "choir/ops/reduce.hpp"
#include "choir/ops/rope.hpp"
#include "src/model/logits.hpp"
#include "src/model/piece_walk.hpp"

namespace choir {
namespace {

/// Of the targets of this pass; `columns`: of the vocabulary, padding included, on this rank.
double smoothing_of(const Pass& pass, const GptConfig& c, std::int64_t columns) {
  if (!pass.training()) return 0;
  if (!pass.breaks(NegativeControl::local_smoothing)) return c.label_smoothing;
  // e / columns for each symbol, as e V / columns in all; below 1.
  const double parts = static_cast<double>(c.vocab_size) / static_cast<double>(columns);
  return std::min(c.label_smoothing * parts, 0.5 * (1 + c.label_smoothing));
}

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
  if (rope_table_.count() > 0) ops::rope_table(pass.stream(), config_.rope_theta, rope_table_);
}

// A part does not tell how long the whole is.
Sequence Gpt::sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
  return share_of_sequences(
      batch.samples, context.size() > 1 ? config_.block_size : batch.inputs.count() / batch.samples,
      context);
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
  begin_forward(pass, index, here, input, boundary_shape(pass));
  ResidualStream stream;
  stream.residual = here.input ? embed(pass, batch.inputs, hooks) : std::move(input);
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
  if (generates) return gather_columns(pass, logits);
  Tensor losses = pass.allocate_statistic({pass.sequence().rows()}, "losses");
  const std::int64_t vocabulary = pass.breaks(NegativeControl::padding_leaks)
                                      ? logits.shape.back() * pass.tensor().size()
                                      : config_.vocab_size;
  token_losses(pass,
               {.logits = logits,
                .targets = batch.targets,
                .losses = losses,
                .vocabulary = vocabulary,
                .scale = batch.scale,
                .device_scale = batch.device_scale,
                .write_gradient = pass.training(),
                .label_smoothing = smoothing_of(pass, config_, logits.shape.back())},
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
  if (trained_.reach(0)) embedding_backward(pass, d_stream, batch.inputs, hooks);
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
  return through(pass,
                 {.inputs = ids, .targets = targets, .scale = scale, .device_scale = device_scale},
                 hooks);
}

void Gpt::backward(Pass& pass, const TensorView& ids, BucketHooks& hooks) {
  Tensor d_stream;
  for (int i = pieces() - 1; i >= 0; --i)
    d_stream = backward(pass, i, std::move(d_stream), {.inputs = ids}, hooks);
}

Tensor Gpt::next_logits(Pass& pass, const TensorView& ids, BucketHooks& hooks) {
  return through(pass, {.inputs = ids}, hooks);
}

std::int64_t Gpt::kv_heads_of_rank() const {
  return SelfAttention::heads_of_rank(config_.n_kv_head, parameters_->tensor());
}

}  // namespace choir
