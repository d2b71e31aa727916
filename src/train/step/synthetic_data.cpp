#include "choir/train/step/synthetic_data.hpp"

namespace choir {

SyntheticData::SyntheticData(std::unique_ptr<SyntheticBatches> batches, const ModelConfig& config,
                             const BatchSizes& batch, std::string description, bool validates)
    : batches_(std::move(batches)),
      vocabulary_(config.vocab_size()),
      micro_batches_(config.family().fixed_shape() ? batch.micro_batches() : batch.global),
      description_(std::move(description)),
      validates_(validates) {}

void SyntheticData::start_training(const Sharding& sharding, std::int64_t per_rank,
                                   const Position& from) {
  first_ = sharding.first_micro_batch(per_rank), stride_ = sharding.micro_batch_stride();
  per_rank_ = per_rank, step_ = from.step, call_ = 0;
}

// Ranks may have more positions than a step has micro-batches.
ModelBatch SyntheticData::next() {
  const std::int64_t place = first_ + call_ * stride_, step = step_;
  if (++call_ == per_rank_) call_ = 0, ++step_;
  return place < micro_batches_ ? batches_->micro_batch(step * micro_batches_ + place)
                                : batches_->padding();
}

StepContent SyntheticData::content(std::int64_t step, const Model& model) {
  const std::int64_t first = step * micro_batches_;
  StepContent content{.targets = batches_->targets(first, micro_batches_)};
  for (std::int64_t index = first; index < first + micro_batches_; ++index) {
    const BatchShape shape = batches_->shape(index);
    content.samples += static_cast<double>(shape.samples);
    content.audio_seconds += batches_->audio_seconds(index);
    content.flops += model.flops(shape);
  }
  return content;
}

std::vector<Validation> SyntheticData::validate(ModelInstance& instance, ProgressLine*) {
  constexpr std::int64_t kFirst = std::int64_t{1} << 32, kCount = 4;
  ByTerm sums;
  for (std::int64_t i = kFirst; i < kFirst + kCount; ++i)
    sums += instance.loss_sums(batches_->micro_batch(i));
  for (const Axis axis : {Axis::context, Axis::pipeline})
    instance.mesh().host_along(axis).all_reduce(sums.begin(), sums.size(), DType::f64,
                                                ReduceOp::sum);
  return {validation_of(instance.loss_terms(), sums, batches_->targets(kFirst, kCount))};
}

}  // namespace choir
