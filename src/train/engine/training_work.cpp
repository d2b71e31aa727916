#include "choir/train/engine/training_work.hpp"

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
  received_ = instance.make_pass();
}

ModelBatch TrainingWork::batch_of(int micro_batch) const {
  const bool again = micro_batch == 1 && exchanges_ &&
                     instance_.options().control == NegativeControl::micro_batch_twice;
  return step_.batch_of(again ? 0 : micro_batch);
}

Tensor TrainingWork::receive_buffer(int micro_batch, bool gradient) {
  received_->begin(Mode::train, sequence_of(batch_of(micro_batch)), 0);
  return received_->allocate(instance_.model().boundary_shape(*received_),
                             gradient ? "gradient received" : "activation received");
}

Tensor TrainingWork::forward(int micro_batch, int chunk, Tensor input) {
  ModelBatch& batch = batches_[static_cast<std::size_t>(micro_batch)];
  if (chunk == 0) {
    batch = batch_of(micro_batch);
    batch.device_scale = step_.loss_factor;
  }
  step_.enter(Phase::forward);
  Pass& pass = take_pass(micro_batch, chunk);
  pass.begin(Mode::train, sequence_of(batch), batch.first_sample, batch.first_sample_on_device);
  pass.record_in(micro_batch);
  Tensor output = instance_.model().forward(pass, chunk, std::move(input), batch, partial_);
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
  Tensor d_input = instance_.model().backward(
      pass, chunk, std::move(d_output), batches_[static_cast<std::size_t>(micro_batch)], partial_);
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
