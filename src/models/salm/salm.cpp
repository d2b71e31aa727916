#include "src/models/salm/salm.hpp"

#include <utility>

#include "choir/device/profile_range.hpp"
#include "choir/models/gpt/gpt.hpp"
#include "choir/models/salm/two_towers.hpp"
#include "src/models/parameter_table.hpp"

namespace choir {
namespace {

/// The number of a pass's second sequence: the frames of clips.
constexpr int kFrames = 1;

SalmConfig with_parts(SalmConfig config) {
  config.encoder.recompute = config.lm.recompute = config.recompute;
  return config;
}

}  // namespace

Salm::Salm(const SalmConfig& c, ParameterSet& parameters, const ModelCut& cut)
    : Model(parameters, cut, c.n_layer),
      config_(with_parts(c)),
      encoder_(config_.encoder, parameters),
      decoder_(
          config_.lm, parameters,
          {.prefix = "lm.",
           .shares_weight = c.lm.tied && !cut.separate_tied && ends_meet(pieces_, c.junction()),
           .one_piece = pieces_.whole() && pieces() == 1,
           .spliced = true}) {
  encoder_.add(0, pieces_, trained_);
  trained_.begin_unit(parameters);
  projector_ = std::make_unique<FrameProjector>(parameters, c.encoder.n_embd, c.lm.n_embd,
                                                pieces_.resident(c.junction()));
  decoder_.add_embedding(pieces_.resident(c.junction()));
  decoder_.add_blocks(c.junction() + 1, pieces_, trained_);
  trained_.begin_unit(parameters);
  decoder_.add_head(pieces_.has_head());
}

std::size_t Salm::table_bytes(const Precision& precision) const {
  return tables_behind(encoder_, precision) + decoder_.table_bytes(precision);
}

void Salm::prepare(Pass& pass, void* memory) {
  Model::prepare(pass, memory);
  encoder_.prepare(pass, memory);
  decoder_.prepare(pass,
                   static_cast<std::byte*>(memory) + tables_behind(encoder_, pass.precision()));
}

Sequence Salm::sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
  Sequence sequence = Model::sequence_of(batch, context);
  sequence.sample_ids = static_cast<const std::int64_t*>(batch["conversation_ids"].data);
  return sequence;
}

void Salm::add_sequences(Pass& pass, const ModelBatch& batch) const {
  if (batch.find("audio") == nullptr) return;
  Sequence frames = encoder_.sequence_of(batch);
  frames.repeated = true;
  pass.add_sequence(frames);
}

Shape Salm::boundary_shape(const Pass& pass, int unit) const {
  if (unit >= config_.junction()) return {pass.share_rows(), config_.lm.n_embd};
  return {pass.share_rows(pass.sequence(kFrames)), config_.encoder.n_embd};
}

Tensor Salm::forward(Pass& pass, int index, Tensor stream, const ModelBatch& batch,
                     BucketHooks& hooks) {
  const ModelPieces::Piece& here = begin_forward(pass, index, stream);
  const bool hears = here.first_unit < config_.junction() && batch.find("audio") != nullptr;
  if (hears) {
    const Pass::On frames(pass, kFrames);
    stream = encoder_.forward(pass, here, trained_, std::move(stream), batch, hooks);
  }
  if (here.contains(config_.junction())) stream = junction(pass, stream, batch, hooks);
  if (here.last_unit <= config_.junction()) return stream;
  return decoder_.forward_blocks(pass, here, trained_, std::move(stream),
                                 here.head ? &batch : nullptr, hooks);
}

Tensor Salm::junction(Pass& pass, const Tensor& frames, const ModelBatch& batch,
                      BucketHooks& hooks) {
  const ProfileRange range(pass.stream(), "junction");
  const Pass::Unsaved below(pass, !trained_.reach(config_.junction()));
  const TensorView& index = batch["index"];
  if (frames.empty()) return decoder_.embedding().forward(pass, index, hooks);
  const auto heard = [&] {
    const Pass::On on_frames(pass, kFrames);
    return projector_->forward(pass, frames, hooks);
  }();
  return decoder_.embedding().forward(pass, index, hooks,
                                      [&](const Tensor& terms) { heard.add(pass, index, terms); });
}

Tensor Salm::backward(Pass& pass, int index, Tensor d_output, const ModelBatch& batch,
                      BucketHooks& hooks) {
  const ModelPieces::Piece& here = begin_backward(pass, index, d_output);
  Tensor d_stream = std::move(d_output);
  if (here.last_unit > config_.junction())
    d_stream = decoder_.backward_blocks(pass, here, trained_, std::move(d_stream), hooks);
  if (here.contains(config_.junction())) d_stream = junction_backward(pass, d_stream, batch, hooks);
  if (here.first_unit >= config_.junction()) return d_stream;
  const Pass::On frames(pass, kFrames);
  return encoder_.backward(pass, here, trained_, std::move(d_stream), batch, hooks);
}

Tensor Salm::junction_backward(Pass& pass, const Tensor& d_stream, const ModelBatch& batch,
                               BucketHooks& hooks) {
  const ProfileRange range(pass.stream(), "junction backward");
  if (!trained_.reach(config_.junction())) {
    const Pass::On frames(pass, kFrames);
    return pass.allocate({pass.share_rows(), config_.encoder.n_embd}, "gradient of no use");
  }
  const TensorView& index = batch["index"];
  const Tensor d_rows = decoder_.embedding().rows_backward(pass, d_stream);
  decoder_.embedding().backward(pass, d_rows, index, hooks);
  const Pass::On frames(pass, kFrames);
  return projector_->backward(pass, index, d_rows, hooks);
}

StreamState Salm::make_state(Pass& pass, BucketHooks&, std::int64_t streams) const {
  StreamState state(streams);
  decoder_.remember(pass, state);
  return state;
}

// What a Salm says about itself.
UnitCosts Salm::unit_costs(const SalmConfig& c, const BatchShape& shape) {
  return two_tower_costs(c.encoder, c.lm, shape, shape.clips);
}

double Salm::flops(const BatchShape& shape) const {
  return training_flops(unit_costs(config_, shape));
}

std::vector<std::pair<std::string, std::int64_t>> Salm::further_counts() const {
  return {{"encoder", parameters_of(*parameters_, "encoder.")},
          {"projector", parameters_of(*parameters_, "projector.")},
          {"language model", parameters_of(*parameters_, "lm.")}};
}

std::string Salm::describe() const {
  return parameter_table(
      *parameters_,
      {{"encoder.blocks", config_.encoder.n_layer}, {"lm.blocks", config_.lm.n_layer}}, 44);
}

}  // namespace choir
