#include "src/models/salm/salm.hpp"

#include <utility>

namespace choir {

Salm::Salm(const SalmConfig& c, ParameterSet& parameters, const ModelCut& cut)
    : TwoTowers({c.encoder, c.lm, c.recompute, c.adapter.layers, c.shares_clips()}, parameters, cut,
                {.spliced = true}),
      config_(c),
      stack_(c.adapter.stack) {
  {
    const ParameterSet::Alone alone(parameters, c.shares_clips());
    encoder_.add(0, pieces_, trained_);
    trained_.begin_unit(parameters);
    projector_ = std::make_unique<FrameProjector>(parameters, c.adapter.stack * c.encoder.n_embd,
                                                  c.lm.n_embd, pieces_.resident(junction()));
  }
  decoder_.add_embedding(pieces_.resident(junction()));
  decoder_.add_blocks(junction() + 1, pieces_, trained_);
  trained_.begin_unit(parameters);
  decoder_.add_head(pieces_.has_head());
}

Sequence Salm::sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
  Sequence sequence = Model::sequence_of(batch, context);
  sequence.sample_ids = static_cast<const std::int64_t*>(batch["conversation_ids"].data);
  return sequence;
}

void Salm::add_sequences(Pass& pass, const ModelBatch& batch) const {
  TwoTowers::add_sequences(pass, batch);
  if (batch.find("audio") != nullptr) pass.add_sequence(stack_.rows_of(pass.sequence(kFrames)));
}

Tensor Salm::forward(Pass& pass, int index, Tensor stream, const ModelBatch& batch) {
  const ModelPieces::Piece& here = begin_forward(pass, index, stream);
  if (here.first_unit < junction() && batch.find("audio") != nullptr) {
    const Pass::On frames(pass, kFrames);
    stream = encoder_.forward(pass, here, trained_, std::move(stream), batch);
  }
  return forward_behind_encoder(pass, here, std::move(stream), batch);
}

Tensor Salm::join(Pass& pass, const Tensor& frames, const ModelBatch& batch) {
  const TensorView& index = batch["index"];
  if (frames.empty()) return decoder_.embedding().forward(pass, index);
  const auto heard = [&] {
    const Tensor stacked = stack_.forward(pass, frames, kFrames, kClipRows);
    const Pass::On on_rows(pass, kClipRows);
    return projector_->forward(pass, stacked);
  }();
  return decoder_.embedding().forward(pass, index,
                                      [&](const Tensor& terms) { heard.add(pass, index, terms); });
}

Tensor Salm::join_backward(Pass& pass, const Tensor& d_rows, const ModelBatch& batch) {
  const TensorView& index = batch["index"];
  decoder_.embedding().backward(pass, d_rows, index);
  const Tensor d_stacked = [&] {
    const Pass::On on_rows(pass, kClipRows);
    return projector_->backward(pass, index, d_rows);
  }();
  return stack_.backward(pass, d_stacked, kFrames, kClipRows);
}

StreamState Salm::make_state(Pass& pass, std::int64_t streams) const {
  StreamState state(streams);
  decoder_.remember(pass, state);
  return state;
}

// Costs of a Salm.
UnitCosts Salm::unit_costs(const SalmConfig& c, const BatchShape& shape) {
  return two_tower_costs(c.encoder, c.lm, shape, shape.clips, c.adapter.layers);
}

double Salm::flops(const BatchShape& shape) const {
  return trained_.flops(unit_costs(config_, shape));
}

}  // namespace choir
