#include "src/models/duplex/duplex.hpp"

#include <utility>

#include "choir/device/profile_range.hpp"
#include "choir/models/gpt/gpt.hpp"
#include "choir/models/salm/two_towers.hpp"
#include "src/models/parameter_table.hpp"

namespace choir {
namespace {

/// The number of a pass's second sequence: the frames of the audio.
constexpr int kHeardFrames = 1;

DuplexConfig with_recompute(DuplexConfig config) {
  config.encoder.recompute = config.lm.recompute = config.recompute;
  return config;
}

/// A chunk of audio for the encoder alone.
bool only_hears(const Pass& pass, const ModelBatch& batch) {
  return pass.mode() == Mode::generate && batch.find("text") == nullptr;
}

}  // namespace

Duplex::Duplex(const DuplexConfig& c, ParameterSet& parameters, const ModelCut& cut)
    : Model(parameters, cut, c.n_layer),
      config_(with_recompute(c)),
      encoder_(config_.encoder, parameters),
      decoder_(
          config_.lm, parameters,
          {.prefix = "lm.",
           .shares_weight = c.lm.tied && !cut.separate_tied && ends_meet(pieces_, c.junction()),
           .one_piece = pieces_.whole() && pieces() == 1,
           .targets = "text_targets",
           .weights = "text_weights"}) {
  const bool joins = pieces_.resident(c.junction());
  encoder_.add(0, pieces_, trained_);
  trained_.begin_unit(parameters);
  projector_ = std::make_unique<FrameProjector>(parameters, c.encoder.n_embd, c.lm.n_embd, joins,
                                                c.user_weight);
  decoder_.add_embedding(joins);
  code_embedding_ = std::make_unique<CodeEmbedding>(c, parameters, joins);
  decoder_.add_blocks(c.junction() + 1, pieces_, trained_);
  trained_.begin_unit(parameters);
  // The head of codes is registered behind that of the text.
  decoder_.add_head(pieces_.has_head());
  code_head_ = std::make_unique<CodeHead>(c, parameters, pieces_.has_head());
  decoder_.put_beside(*code_head_);
}

std::size_t Duplex::table_bytes(const Precision& precision) const {
  return tables_behind(encoder_, precision) + decoder_.table_bytes(precision);
}

void Duplex::prepare(Pass& pass, void* memory) {
  Model::prepare(pass, memory);
  encoder_.prepare(pass, memory);
  decoder_.prepare(pass,
                   static_cast<std::byte*>(memory) + tables_behind(encoder_, pass.precision()));
}

Sequence Duplex::sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
  Sequence sequence = Model::sequence_of(batch, context);
  sequence.sample_ids = static_cast<const std::int64_t*>(batch["dialogue_ids"].data);
  return sequence;
}

void Duplex::begin_hearing(Pass& pass, const ModelBatch& batch) const {
  pass.begin(Mode::generate, encoder_.sequence_of(batch), 0);
}

void Duplex::add_sequences(Pass& pass, const ModelBatch& batch) const {
  if (batch.find("audio") == nullptr) return;
  Sequence frames = encoder_.sequence_of(batch);
  frames.repeated = true;
  pass.add_sequence(frames);
}

Shape Duplex::boundary_shape(const Pass& pass, int unit) const {
  if (unit >= config_.junction()) return {pass.share_rows(), config_.lm.n_embd};
  return {pass.share_rows(pass.sequence(kHeardFrames)), config_.encoder.n_embd};
}

Tensor Duplex::forward(Pass& pass, int index, Tensor stream, const ModelBatch& batch,
                       BucketHooks& hooks) {
  const ModelPieces::Piece& here = begin_forward(pass, index, stream);
  if (only_hears(pass, batch))
    return encoder_.forward(pass, here, trained_, std::move(stream), batch, hooks);
  if (batch.find("heard") != nullptr) {
    CHOIR_CHECK(pieces_.whole(), "frames for a part of a model");
    stream = Tensor().view(batch["heard"]);
  } else if (here.first_unit < config_.junction()) {
    const Pass::On frames(pass, kHeardFrames);
    stream = encoder_.forward(pass, here, trained_, std::move(stream), batch, hooks);
  }
  if (here.contains(config_.junction())) stream = junction(pass, stream, batch, hooks);
  if (here.last_unit <= config_.junction()) return stream;
  return decoder_.forward_blocks(pass, here, trained_, std::move(stream),
                                 here.head ? &batch : nullptr, hooks);
}

Tensor Duplex::junction(Pass& pass, const Tensor& frames, const ModelBatch& batch,
                        BucketHooks& hooks) {
  const ProfileRange range(pass.stream(), "junction");
  const Pass::Unsaved below(pass, !trained_.reach(config_.junction()));
  const auto heard = [&] {
    const Pass::On on_frames(pass, batch.find("heard") != nullptr ? 0 : kHeardFrames);
    return projector_->forward(pass, frames, hooks);
  }();
  return decoder_.embedding().forward(pass, batch["text"], hooks, [&](const Tensor& terms) {
    code_embedding_->add(pass, batch["codes"], terms, hooks);
    heard.add(pass, batch["frames"], terms);
  });
}

Tensor Duplex::backward(Pass& pass, int index, Tensor d_output, const ModelBatch& batch,
                        BucketHooks& hooks) {
  const ModelPieces::Piece& here = begin_backward(pass, index, d_output);
  Tensor d_stream = std::move(d_output);
  if (here.last_unit > config_.junction())
    d_stream = decoder_.backward_blocks(pass, here, trained_, std::move(d_stream), hooks);
  if (here.contains(config_.junction())) d_stream = junction_backward(pass, d_stream, batch, hooks);
  if (here.first_unit >= config_.junction()) return d_stream;
  const Pass::On frames(pass, kHeardFrames);
  return encoder_.backward(pass, here, trained_, std::move(d_stream), batch, hooks);
}

Tensor Duplex::junction_backward(Pass& pass, const Tensor& d_stream, const ModelBatch& batch,
                                 BucketHooks& hooks) {
  const ProfileRange range(pass.stream(), "junction backward");
  if (!trained_.reach(config_.junction())) {
    const Pass::On frames(pass, kHeardFrames);
    return pass.allocate({pass.share_rows(), config_.encoder.n_embd}, "gradient of no use");
  }
  const Tensor d_rows = decoder_.embedding().rows_backward(pass, d_stream);
  code_embedding_->backward(pass, batch["codes"], d_rows, hooks);
  decoder_.embedding().backward(pass, d_rows, batch["text"], hooks);
  const Pass::On frames(pass, kHeardFrames);
  return projector_->backward(pass, batch["frames"], d_rows, hooks);
}

StreamState Duplex::make_state(Pass& pass, BucketHooks&, std::int64_t streams) const {
  return make_state_of(pass, streams, config_.lm.block_size);
}

StreamState Duplex::make_state_of(Pass& pass, std::int64_t streams, std::int64_t frames) const {
  StreamState state(streams);
  decoder_.remember(pass, state, frames);
  return state;
}

StreamState Duplex::make_encoder_state(Pass& pass, BucketHooks& hooks) const {
  CHOIR_CHECK(pieces_.whole(), "this rank has {} pieces of the model, not all of it", pieces());
  return encoder_.make_state(pass, hooks, 1);
}

// What a Duplex says about itself.
UnitCosts Duplex::unit_costs(const DuplexConfig& c, const BatchShape& shape) {
  const auto rows = static_cast<double>(shape.samples * shape.tokens);
  const auto width = static_cast<double>(c.lm.n_embd);
  const auto books = static_cast<double>(c.codebooks), ids = static_cast<double>(c.code_ids());
  UnitCosts costs = two_tower_costs(c.encoder, c.lm, shape, shape.samples);
  costs[static_cast<std::size_t>(c.junction())] += rows * width * books;
  costs.back() += 2 * rows * width * books * ids;
  return costs;
}

double Duplex::flops(const BatchShape& shape) const {
  return training_flops(unit_costs(config_, shape));
}

std::vector<std::pair<std::string, std::int64_t>> Duplex::further_counts() const {
  return {{"encoder", parameters_of(*parameters_, "encoder.")},
          {"projector", parameters_of(*parameters_, "projector.")},
          {"language model", parameters_of(*parameters_, "lm.")},
          {"codes", parameters_of(*parameters_, "code_")}};
}

std::string Duplex::describe() const {
  return parameter_table(
      *parameters_,
      {{"encoder.blocks", config_.encoder.n_layer}, {"lm.blocks", config_.lm.n_layer}}, 44);
}

}  // namespace choir
