#include "src/models/duplex/duplex.hpp"

#include <utility>

namespace choir {
namespace {

/// True for a batch of audio alone, which only the encoder reads.
bool only_hears(const Pass& pass, const ModelBatch& batch) {
  return pass.mode() == Mode::generate && batch.find("text") == nullptr;
}

}  // namespace

Duplex::Duplex(const DuplexConfig& c, ParameterSet& parameters, const ModelCut& cut)
    : TwoTowers({c.encoder, c.lm, c.recompute}, parameters, cut,
                {.targets = "text_targets", .weights = "text_weights"}),
      config_(c) {
  const bool joins = pieces_.resident(junction());
  encoder_.add(0, pieces_, trained_);
  trained_.begin_unit(parameters);
  projector_ = std::make_unique<FrameProjector>(parameters, c.encoder.n_embd, c.lm.n_embd, joins,
                                                c.user_weight);
  decoder_.add_embedding(joins);
  code_embedding_ = std::make_unique<CodeEmbedding>(c, parameters, joins);
  decoder_.add_blocks(junction() + 1, pieces_, trained_);
  trained_.begin_unit(parameters);
  // The head of codes is registered after that of the text.
  decoder_.add_head(pieces_.has_head());
  code_head_ = std::make_unique<CodeHead>(c, parameters, pieces_.has_head());
  decoder_.put_beside(*code_head_);
}

Sequence Duplex::sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
  Sequence sequence = Model::sequence_of(batch, context);
  sequence.sample_ids = static_cast<const std::int64_t*>(batch["dialogue_ids"].data);
  return sequence;
}

void Duplex::begin_hearing(Pass& pass, const ModelBatch& batch) const {
  pass.begin(Mode::generate, encoder_.sequence_of(batch), 0);
}

Tensor Duplex::forward(Pass& pass, int index, Tensor stream, const ModelBatch& batch,
                       BucketHooks& hooks) {
  const ModelPieces::Piece& here = begin_forward(pass, index, stream);
  if (only_hears(pass, batch))
    return encoder_.forward(pass, here, trained_, std::move(stream), batch, hooks);
  if (batch.find("heard") != nullptr) {
    CHOIR_CHECK(pieces_.whole(), "frames for a part of a model");
    stream = Tensor().view(batch["heard"]);
  } else if (here.first_unit < junction()) {
    const Pass::On frames(pass, kFrames);
    stream = encoder_.forward(pass, here, trained_, std::move(stream), batch, hooks);
  }
  return forward_behind_encoder(pass, here, std::move(stream), batch, hooks);
}

Tensor Duplex::join(Pass& pass, const Tensor& frames, const ModelBatch& batch, BucketHooks& hooks) {
  const auto heard = [&] {
    const Pass::On on_frames(pass, batch.find("heard") != nullptr ? 0 : kFrames);
    return projector_->forward(pass, frames, hooks);
  }();
  return decoder_.embedding().forward(pass, batch["text"], hooks, [&](const Tensor& terms) {
    code_embedding_->add(pass, batch["codes"], terms, hooks);
    heard.add(pass, batch["frames"], terms);
  });
}

Tensor Duplex::join_backward(Pass& pass, const Tensor& d_rows, const ModelBatch& batch,
                             BucketHooks& hooks) {
  code_embedding_->backward(pass, batch["codes"], d_rows, hooks);
  decoder_.embedding().backward(pass, d_rows, batch["text"], hooks);
  const Pass::On frames(pass, kFrames);
  return projector_->backward(pass, batch["frames"], d_rows, hooks);
}

StreamState Duplex::make_state(Pass& pass, BucketHooks&, std::int64_t streams) const {
  return make_state_of(pass, streams, config_.lm.block_size);
}

StreamState Duplex::make_state_of(Pass& pass, std::int64_t streams, std::int64_t frames) const {
  StreamState state(streams, frames == 0);
  decoder_.remember(pass, state, frames);
  return state;
}

StreamState Duplex::make_encoder_state(Pass& pass, BucketHooks& hooks) const {
  CHOIR_CHECK(pieces_.whole(), "this rank has {} pieces of the model, not all of it", pieces());
  return encoder_.make_state(pass, hooks, 1);
}

// Costs of a Duplex.
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
  return trained_.flops(unit_costs(config_, shape));
}

std::vector<std::pair<std::string, std::int64_t>> Duplex::further_counts() const {
  auto counts = TwoTowers::further_counts();
  counts.emplace_back("codes", parameters_of(*parameters_, "code_"));
  return counts;
}

}  // namespace choir
