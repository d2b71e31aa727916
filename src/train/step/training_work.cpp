#include "src/train/step/training_work.hpp"

#include <utility>

#include "src/device/null_device.hpp"

namespace choir {

TrainingWork::TrainingWork(ModelInstance& instance, GradientPath& gradients, const Options& options)
    : instance_(instance), gradients_(gradients), options_(options) {
  exchanges_ = instance.stages().size() > 1;
  for (int i = options.passes; i-- > 0;) {
    passes_.push_back(instance.make_pass());
    passes_.back()->set_hooks(gradients.hooks());
    free_.push_back(i);
  }
  const auto count = static_cast<std::size_t>(options.micro_batches);
  pass_of_.assign(count * static_cast<std::size_t>(instance.model().pieces()), -1);
  batches_.resize(count);
  received_ = instance.make_pass();
}

Tensor TrainingWork::receive_buffer(int micro_batch, int chunk, bool gradient) {
  instance_.model().begin(*received_, Mode::train, step_.batch_of(micro_batch));
  const ModelPieces::Piece& piece = instance_.model().piece(chunk);
  const int unit = gradient ? piece.last_unit : piece.first_unit - 1;
  return received_->allocate(instance_.model().boundary_shape(*received_, unit),
                             gradient ? "gradient received" : "activation received");
}

Tensor TrainingWork::forward(int micro_batch, int chunk, Tensor input) {
  ModelBatch& batch = batches_[static_cast<std::size_t>(micro_batch)];
  if (chunk == 0) {
    batch = step_.batch_of(micro_batch);
    batch.device_scales = step_.loss_factors;
  }
  step_.enter(Phase::forward);
  enter_place(instance_.stream(),
              {WorkPart::forward, chunk, micro_batch + 1 == options_.micro_batches});
  Pass& pass = take_pass(micro_batch, chunk);
  instance_.model().begin(pass, Mode::train, batch);
  pass.record_in(micro_batch);
  // A head in chunks writes its gradients in forward.
  if (instance_.model().has_head(chunk))
    gradients_.begin_micro_batch(instance_.stream(), micro_batch);
  pass.collect_losses(step_.losses_of(micro_batch));
  Tensor output = instance_.model().forward(pass, chunk, std::move(input), batch);
  if (instance_.model().has_head(chunk)) output.reset();  // the pass has collected the losses
  leave();
  return output;
}

Tensor TrainingWork::backward(int micro_batch, int chunk, Tensor d_output, bool with_weights) {
  step_.enter(Phase::backward);
  enter_place(instance_.stream(), {with_weights ? WorkPart::backward : WorkPart::backward_input,
                                   chunk, micro_batch + 1 == options_.micro_batches});
  Pass& pass = pass_of(micro_batch, chunk);
  pass.postpone_weight_gradients(!with_weights);
  if (with_weights) gradients_.begin_micro_batch(instance_.stream(), micro_batch);
  Tensor d_input = instance_.model().backward(pass, chunk, std::move(d_output),
                                              batches_[static_cast<std::size_t>(micro_batch)]);
  if (with_weights) free_pass(micro_batch, chunk);
  leave();
  return d_input;
}

void TrainingWork::backward_weight(int micro_batch, int chunk) {
  step_.enter(Phase::backward);
  enter_place(instance_.stream(),
              {WorkPart::backward_weight, chunk, micro_batch + 1 == options_.micro_batches});
  gradients_.begin_micro_batch(instance_.stream(), micro_batch);
  instance_.model().weight_gradients(pass_of(micro_batch, chunk), chunk);
  free_pass(micro_batch, chunk);
  leave();
}

// Called after a computation: the stage may now wait for other stages.
void TrainingWork::leave() {
  if (exchanges_) step_.enter(Phase::comm);
  enter_place(instance_.stream(), {.part = WorkPart::exchange});
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
