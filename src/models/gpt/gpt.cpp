#include "src/models/gpt/gpt.hpp"

#include <fmt/core.h>

#include <utility>

#include "choir/models/blocks.hpp"

namespace choir {

Gpt::Gpt(const GptConfig& c, ParameterSet& parameters, const ModelCut& cut)
    : Model(parameters, cut, c.n_layer),
      decoder_(c, parameters,
               {.shares_weight = c.tied && !cut.separate_tied && pieces_.has_input() &&
                                 pieces_.has_head() &&
                                 (pieces() == 1 || !DecoderTower::may_chunk_head(c)),
                .one_piece = pieces_.whole() && pieces() == 1,
                .fixed_rows = true}) {
  trained_.begin_unit(parameters);
  decoder_.add_embedding(pieces_.has_input());
  decoder_.add_blocks(1, pieces_, trained_);
  trained_.begin_unit(parameters);
  decoder_.add_head(pieces_.has_head());
}

void Gpt::prepare(Pass& pass, void* memory) {
  Model::prepare(pass, memory);
  decoder_.prepare(pass, memory);
}

Sequence Gpt::sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
  Sequence sequence = Model::sequence_of(batch, context);
  if (const TensorView* begins = batch.find(kDocumentBegins)) {
    sequence.document_positions = batch.tokens;
    sequence.document_begins = static_cast<const std::int32_t*>(begins->data);
    sequence.positions_in_document =
        static_cast<const std::int32_t*>(batch[kDocumentPositions].data);
  }
  return sequence;
}

Tensor Gpt::forward(Pass& pass, int index, Tensor input, const ModelBatch& batch) {
  const ModelPieces::Piece& here = begin_forward(pass, index, input);
  if (here.input) {
    const Pass::Unsaved below(pass, !trained_.reach(0));
    input = decoder_.embedding().forward(pass, batch["inputs"]);
  }
  return decoder_.forward_blocks(pass, here, trained_, std::move(input),
                                 here.head ? &batch : nullptr);
}

Tensor Gpt::backward(Pass& pass, int index, Tensor d_output, const ModelBatch& batch) {
  const ModelPieces::Piece& here = begin_backward(pass, index, d_output);
  const Tensor d_stream = decoder_.backward_blocks(pass, here, trained_, std::move(d_output));
  if (!here.input) return d_stream;
  TokenEmbedding& embedding = decoder_.embedding();
  if (trained_.reach(0))
    embedding.backward(pass, embedding.rows_backward(pass, d_stream), batch["inputs"]);
  return {};
}

Tensor Gpt::through(Pass& pass, const ModelBatch& batch) {
  CHOIR_CHECK(pieces_.whole(), "this rank has {} pieces of the model, not all of it", pieces());
  Tensor stream;
  for (int i = 0; i < pieces(); ++i) stream = forward(pass, i, std::move(stream), batch);
  return stream;
}

Tensor Gpt::loss(Pass& pass, const TensorView& ids, const TensorView& targets, double scale,
                 const double* device_scale) {
  ModelBatch batch = token_batch(pass.sequence().batch, ids, targets);
  batch.scale = scale;
  batch.device_scales = device_scale;
  return through(pass, batch);
}

void Gpt::backward(Pass& pass, const TensorView& ids) {
  Tensor d_stream;
  for (int i = pieces() - 1; i >= 0; --i)
    d_stream = backward(pass, i, std::move(d_stream), token_batch(pass.sequence().batch, ids));
}

Tensor Gpt::next_logits(Pass& pass, const TensorView& ids) {
  return through(pass, token_batch(pass.sequence().batch, ids));
}

StreamState Gpt::make_state(Pass& pass, std::int64_t streams) const {
  StreamState state(streams);
  decoder_.remember(pass, state);
  return state;
}

// Counts, costs and the description of a Gpt.
namespace {

/// T in the formulas, which ignore the causal mask. A window W reduces it by the share that it
/// hides of what the mask leaves: W (2 T - W) / T.
double attended_positions(const GptConfig& c, const LayerKind& kind) {
  const auto t = static_cast<double>(c.block_size);
  const auto w = static_cast<double>(kind.window);
  return w > 0 && w < t ? w * (2 * t - w) / t : t;
}

}  // namespace

std::int64_t Gpt::parameters_without_positions() const {
  return parameters_->count() - decoder_.embedding().position_parameters();
}

double Gpt::flops_per_token() const {
  const GptConfig& c = config();
  // The sum of T over all layers, without what windows hide.
  const double attended =
      c.over_layers([&](const LayerKind& kind) { return attended_positions(c, kind); });
  return 6.0 * static_cast<double>(parameters_without_positions()) +
         12.0 * static_cast<double>(c.attention_width()) * attended;
}

double Gpt::document_flops(double tokens, double pairs, double window_pairs) const {
  const GptConfig& c = config();
  const double attended =
      c.over_layers([&](const LayerKind& kind) { return kind.window > 0 ? window_pairs : pairs; });
  return 6.0 * static_cast<double>(parameters_without_positions()) * tokens +
         12.0 * static_cast<double>(c.attention_width()) * attended;
}

UnitCosts Gpt::unit_costs(const GptConfig& c, std::int64_t tokens) {
  const auto n = static_cast<double>(tokens), width = static_cast<double>(c.n_embd);
  const auto heads = static_cast<double>(c.attention_width());
  // Q K^T and P V: 2 T H D each per token, half of which the mask hides.
  const auto of_block = [&](std::int64_t layer) {
    const LayerKind kind = c.kind_of(layer);
    return n * 2 * static_cast<double>(c.matrix_weights(kind)) +
           n * 2 * heads * attended_positions(c, kind);
  };
  return costs_by_layer(n * width * (c.position == Position::learned ? 2 : 1), c.n_layer, of_block,
                        n * 2 * width * static_cast<double>(c.vocab_size));
}

std::string Gpt::describe() const {
  return parameter_table(*parameters_, {"blocks"}, 32, [this](const Parameter& parameter) {
    const bool tied = config().tied && &parameter == &decoder_.embedding().tokens();
    std::string note = tied ? ", tied to the head" : "";
    if (parameter.shard.tiles > 1)
      note += fmt::format("{}in {} tiles", parameter.decay ? ", " : "", parameter.shard.tiles);
    return note;
  });
}

}  // namespace choir
