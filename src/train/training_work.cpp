#include "choir/train/training_work.hpp"

#include <utility>

#include "choir/ops/reduce.hpp"

namespace choir {

TrainingWork::TrainingWork(ModelInstance& instance, GradientReducer& reducer,
                           PartialGradients& partial, const Options& options)
    : instance_(instance), reducer_(reducer), partial_(partial), options_(options) {
  // The reproducible tree takes every micro-batch by itself, and so does a rank that keeps slices.
  complete_ = options.reproducible || instance.storage().sharding().gradients_sharded();
  exchanges_ = instance.stages().size() > 1;
  for (int i = options.passes; i-- > 0;) {
    passes_.push_back(instance.make_pass());
    free_.push_back(i);
  }
  const auto count = static_cast<std::size_t>(options.micro_batches);
  pass_of_.assign(count * static_cast<std::size_t>(instance.model().pieces()), -1);
  batches_.resize(count);
  const std::int64_t block = instance.options().model.block_size;
  Pass& any = *passes_.front();
  any.begin(Mode::train, instance.share_of(options.micro_batch_size, block), 0);
  boundary_ = instance.model().boundary_shape(any);
}

Tensor TrainingWork::receive_buffer(bool gradient) {
  return passes_.front()->allocate(boundary_,
                                   gradient ? "gradient received" : "activation received");
}

Tensor TrainingWork::forward(int micro_batch, int chunk, Tensor input) {
  TokenBatch& batch = batches_[static_cast<std::size_t>(micro_batch)];
  const bool again = micro_batch == 1 && exchanges_ &&
                     instance_.options().control == NegativeControl::micro_batch_twice;
  if (chunk == 0) batch = step_.batch_of(again ? 0 : micro_batch);
  step_.enter(Phase::forward);
  Pass& pass = take_pass(micro_batch, chunk);
  // Kept batches have a share of the positions.
  const std::int64_t tokens = pass.context().size() > 1 ? instance_.options().model.block_size
                                                        : batch.inputs.count() / batch.sequences;
  pass.begin(Mode::train, instance_.share_of(batch.sequences, tokens), batch.first_sample,
             batch.first_sample_on_device);
  Tensor output = instance_.model().forward(
      pass, chunk, std::move(input),
      {.ids = batch.inputs, .targets = batch.targets, .device_scale = step_.loss_factor}, partial_);
  if (instance_.model().has_head(chunk)) {
    ops::tree_sum(instance_.stream(), output, step_.loss_sum(micro_batch));
    output.reset();
  }
  leave();
  return output;
}

Tensor TrainingWork::backward(int micro_batch, int chunk, Tensor d_output, bool with_weights) {
  step_.enter(Phase::backward);
  Pass& pass = pass_of(micro_batch, chunk);
  pass.postpone_weight_gradients(!with_weights);
  if (with_weights) begin_gradients_of(micro_batch);
  Tensor d_input =
      instance_.model().backward(pass, chunk, std::move(d_output),
                                 batches_[static_cast<std::size_t>(micro_batch)].inputs, partial_);
  if (with_weights) free_pass(micro_batch, chunk);
  leave();
  return d_input;
}

void TrainingWork::backward_weight(int micro_batch, int chunk) {
  step_.enter(Phase::backward);
  begin_gradients_of(micro_batch);
  instance_.model().weight_gradients(pass_of(micro_batch, chunk), chunk, partial_);
  free_pass(micro_batch, chunk);
  leave();
}

// What follows may wait for other stages.
void TrainingWork::leave() {
  if (exchanges_) step_.enter(Phase::comm);
}

void TrainingWork::begin_gradients_of(int micro_batch) {
  reducer_.begin_micro_batch(instance_.stream(), micro_batch);
  partial_.begin_micro_batch(instance_.stream(),
                             complete_ || micro_batch + 1 == options_.micro_batches);
}

Pass& TrainingWork::take_pass(int micro_batch, int chunk) {
  CHOIR_CHECK(!free_.empty(), "more than {} passes in flight", passes_.size());
  const int pass = free_.back();
  free_.pop_back();
  pass_of_[place(micro_batch, chunk)] = pass;
  return *passes_[static_cast<std::size_t>(pass)];
}

Pass& TrainingWork::pass_of(int micro_batch, int chunk) const {
  const int pass = pass_of_[place(micro_batch, chunk)];
  CHOIR_CHECK(pass >= 0, "micro-batch {}, chunk {}: backward before forward", micro_batch, chunk);
  return *passes_[static_cast<std::size_t>(pass)];
}

void TrainingWork::free_pass(int micro_batch, int chunk) {
  free_.push_back(std::exchange(pass_of_[place(micro_batch, chunk)], -1));
}

}  // namespace choir
