#include "src/models/fastconformer/fastconformer.hpp"

#include <cmath>
#include <utility>

#include "choir/device/device.hpp"
#include "choir/models/blocks.hpp"
#include "choir/models/logits.hpp"
#include "kernels/ctc/ctc.hpp"
#include "src/nn/axes/tensor_axis.hpp"

namespace choir {

FastConformer::FastConformer(const FastConformerConfig& c, ParameterSet& parameters,
                             const ModelCut& cut)
    : Model(parameters, cut, c.n_layer), encoder_(c, parameters) {
  encoder_.add(0, pieces_, trained_);
  add_head(pieces_.has_head());
}

void FastConformer::add_head(bool resident) {
  trained_.begin_unit(*parameters_);
  const std::int64_t symbols = config().vocab_size + 1;
  parameters_->begin_bucket("head", resident);
  head_ = std::make_unique<Linear>(
      *parameters_, "head", config().n_embd, symbols,
      Linear::Options{.init_std = std::sqrt(2.0 / static_cast<double>(config().n_embd + symbols)),
                      .use = Use::other,
                      .weight_shard = {.alignment = kVocabularyAlignment},
                      .bias_shard = {.alignment = kVocabularyAlignment}});
}

void FastConformer::prepare(Pass& pass, void* memory) {
  Model::prepare(pass, memory);
  encoder_.prepare(pass, memory);
}

Sequence FastConformer::sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
  CHOIR_CHECK(context.size() == 1, "the frames of an utterance over {} ranks", context.size());
  return encoder_.sequence_of(batch);
}

Tensor FastConformer::forward(Pass& pass, int index, Tensor input, const ModelBatch& batch) {
  const ModelPieces::Piece& here = begin_forward(pass, index, input);
  Tensor stream = encoder_.forward(pass, here, trained_, std::move(input), batch);
  return here.head ? head(pass, stream, batch) : stream;
}

Tensor FastConformer::head(Pass& pass, const Tensor& stream, const ModelBatch& batch) {
  const ProfileRange range(pass.stream(), "head and loss");
  pass.acquire(head_->bucket());
  Tensor logits = head_->forward(pass, gather_rows(pass, stream));
  if (!keeps_head(pass)) pass.release(head_->bucket());
  const std::int64_t symbols = config().vocab_size + 1;
  if (pass.mode() == Mode::generate) return without_padding(pass, logits, symbols);
  const Sequence& sequence = pass.sequence();
  Tensor losses = pass.allocate_statistic({sequence.batch}, "losses");
  const Tensor workspace =
      pass.scratch(ops::ctc_workspace(pass.stream(), sequence.batch, sequence.tokens,
                                      batch["labels"].shape[1], symbols),
                   "ctc");
  ops::ctc(pass.stream(), {.logits = logits,
                           .frame_lengths = sequence.lengths,
                           .labels = batch["labels"],
                           .label_lengths = batch["label_lengths"].as<std::int32_t>(),
                           .losses = losses,
                           .vocabulary = symbols,
                           .scale = batch.scale,
                           .device_scale = batch.device_scale(),
                           .write_gradient = pass.training(),
                           .workspace = workspace});
  pass.add_loss(0, losses, {.lengths = batch["label_lengths"]});
  pass.save(logits);  // they hold their gradient now
  return losses;
}

Tensor FastConformer::backward(Pass& pass, int index, Tensor d_output, const ModelBatch& batch) {
  const ModelPieces::Piece& here = begin_backward(pass, index, d_output);
  Tensor d_stream = here.head ? head_backward(pass) : std::move(d_output);
  return encoder_.backward(pass, here, trained_, std::move(d_stream), batch);
}

Tensor FastConformer::head_backward(Pass& pass) {
  const ProfileRange range(pass.stream(), "head backward");
  if (!keeps_head(pass)) pass.acquire(head_->bucket());
  pass.begin_gradients(head_->bucket());
  const Tensor d_stream = own_rows(pass, head_->backward(pass, pass.pop()));
  pass.gradients_ready(head_->bucket());
  pass.release(head_->bucket());
  return d_stream;
}

StreamState FastConformer::make_state(Pass& pass, std::int64_t streams) const {
  CHOIR_CHECK(pieces_.whole() && pieces() == 1, "a stream through a part of a model");
  return encoder_.make_state(pass, streams);
}

// Costs and description of a FastConformer.
UnitCosts FastConformer::unit_costs(const FastConformerConfig& c, const BatchShape& shape) {
  const double frames = static_cast<double>(shape.samples * c.frames(shape.audio_samples));
  const double head = 2 * frames * static_cast<double>(c.n_embd * (c.vocab_size + 1));
  return alike(EncoderTower::input_flops(c, shape), EncoderTower::block_flops(c, shape), head,
               c.n_layer);
}

double FastConformer::flops(const BatchShape& shape) const {
  return trained_.flops(unit_costs(config(), shape));
}

std::string FastConformer::describe() const {
  return parameter_table(*parameters_, {"encoder.blocks"}, 44);
}

}  // namespace choir
