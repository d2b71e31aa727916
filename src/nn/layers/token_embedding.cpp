#include "choir/nn/layers/token_embedding.hpp"

#include <algorithm>
#include <utility>

#include "choir/device/device.hpp"
#include "kernels/embedding/embedding.hpp"
#include "src/nn/axes/tensor_axis.hpp"

namespace choir {
namespace {

TensorView positions_in_document(const Sequence& sequence) {
  return {const_cast<std::int32_t*>(sequence.positions_in_document), DType::i32, {sequence.rows()}};
}

}  // namespace

TokenEmbedding::TokenEmbedding(ParameterSet& parameters, const std::string& name, bool resident,
                               const Options& options)
    : options_(options),
      dropout_(name + ".dropout", options.dropout, options.scale,
               Dropout::FactorType::of_elements) {
  parameters.begin_bucket(name + ".tokens", resident);
  tokens_ = &parameters.add({.name = name + ".tokens.weight",
                             .shape = {options.vocabulary, options.width},
                             .init = Init::normal(options.init_std),
                             .decay = true,
                             .gradient_overwritten = options.shares_weight,
                             .shard = vocabulary_shard()});
  if (options.positions == 0) return;
  parameters.begin_bucket(name + ".positions", resident);
  positions_ = &parameters.add({.name = name + ".positions.weight",
                                .shape = {options.positions, options.width},
                                .init = Init::normal(options.init_std),
                                .decay = true});
}

Tensor TokenEmbedding::forward(Pass& pass, const TensorView& ids, const AddRows& add_rows) {
  const ProfileRange range(pass.stream(), "embedding");
  const Sequence& sequence = pass.sequence();
  const bool has_positions = positions_ != nullptr && pass.tensor().rank() == 0;
  const bool adds_positions = has_positions && sequence.document_positions == 0;
  pass.acquire(tokens_->bucket);
  if (positions_) pass.acquire(positions_->bucket);
  Tensor terms = allocate_terms(pass, options_.width, "embedding");
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
                            .vocabulary = options_.vocabulary,
                            .position_end = sequence.position_end(),
                            .spliced = options_.spliced,
                            .first_position_on_device = sequence.first_position_on_device});
  }
  if (has_positions && !adds_positions)
    ops::embedding_forward(pass.stream(), {.ids = positions_in_document(sequence),
                                           .table = positions_->value,
                                           .positions = {},
                                           .out = terms,
                                           .accumulate = true});
  if (add_rows) add_rows(terms);
  if (positions_) pass.release(positions_->bucket);
  if (!options_.keeps_weight) pass.release(tokens_->bucket);
  Tensor x = RowSum(pass, std::move(terms)).wait();
  dropout_.forward(pass, x);
  return x;
}

Tensor TokenEmbedding::rows_backward(Pass& pass, const Tensor& d_out) const {
  return gather_rows(pass, dropout_.backward(pass, d_out));
}

void TokenEmbedding::backward(Pass& pass, const Tensor& d_rows, const TensorView& ids) {
  if (!tokens_->trainable && !(positions_ && positions_->trainable)) return;
  if (!options_.shares_weight) pass.begin_gradients(tokens_->bucket);
  if (positions_) pass.begin_gradients(positions_->bucket);
  // Runs after the gradient of the shared head, which overwrites the contents.
  pass.weight_gradient({&TokenEmbedding::gradient, this, Tensor().view(ids), d_rows});
  if (positions_) pass.gradients_ready(positions_->bucket);
  pass.gradients_ready(tokens_->bucket);
}

void TokenEmbedding::gradient(Pass& pass, void* self, const Tensor& ids, const Tensor& d_rows) {
  const auto& of = *static_cast<const TokenEmbedding*>(self);
  const Sequence& sequence = pass.sequence();
  const std::int64_t table = of.tokens_->trainable ? of.tokens_->local.rows() : 1;
  const std::int64_t rows = sequence.rows(), width = of.options_.width;
  const bool documents = of.positions_ && sequence.document_positions > 0;
  std::int64_t bytes = ops::embedding_workspace(pass.stream(), rows, table, width);
  if (documents)
    bytes = std::max(bytes,
                     ops::embedding_workspace(pass.stream(), rows, of.options_.positions, width));
  const Tensor workspace = pass.scratch(bytes, "embedding gradient");
  const TensorView all_ids = ids.reshaped({rows});
  for (int i = 0; i < sequence.runs(); ++i) {
    const Sequence::Run run = sequence.run(i);
    ops::embedding_backward(
        pass.stream(),
        {.ids = all_ids.slice(run.first_row, run.rows),
         .d_out = d_rows.slice(run.first_row, run.rows),
         .d_table = of.tokens_->gradient,
         .d_positions = of.positions_ && !documents ? of.positions_->gradient : TensorView{},
         .tokens = run.tokens,
         .first_id = of.first_id(),
         .vocabulary = of.options_.vocabulary,
         .workspace = workspace,
         .first_position = run.first_position,
         .position_end = sequence.position_end(),
         .spliced = of.options_.spliced});
  }
  if (documents)
    ops::embedding_backward(pass.stream(), {.ids = positions_in_document(sequence),
                                            .d_out = d_rows,
                                            .d_table = of.positions_->gradient,
                                            .d_positions = {},
                                            .workspace = workspace});
}

}  // namespace choir
