// Defaults of a family: evaluation of a model whose training data has validation data; and
// synthetic training data.

#include "choir/run/training_data.hpp"
#include "choir/models/family.hpp"

namespace choir {
namespace {

class ValidationOf final : public EvaluationData {
 public:
  /// `fixed`: the shape of all micro-batches, if there is one.
  ValidationOf(std::unique_ptr<TrainingData> data, std::vector<BatchShape> fixed)
      : data_(std::move(data)), fixed_(std::move(fixed)) {
    if (!data_->has_validation())
      throw DataError("no validation data", "set data.val='[\"FILE\"]'");
  }
  std::vector<BatchShape> shapes() const override {
    return fixed_.empty() ? data_->validation_shapes() : fixed_;
  }
  Result evaluate(ModelInstance& instance, ProgressLine* progress) override {
    return {.lines = {}, .metrics = metrics_text(data_->validate(instance, progress))};
  }

 private:
  std::unique_ptr<TrainingData> data_;
  std::vector<BatchShape> fixed_;
};

}  // namespace

Validation validation_of(const std::vector<LossTerm>& terms, const ByTerm& sums,
                         const ByTerm& announced) {
  const ByTerm targets = targets_of_terms(terms, announced);
  ByTerm means = sums;
  for (std::size_t t = 0; t < means.size(); ++t) means[t] /= targets[t];
  return {.name = {},
          .loss = weighted_loss(terms, means, targets),
          .metrics = means_by_name(terms, means, targets)};
}

std::string metrics_text(const std::vector<Validation>& validations) {
  std::string text;
  for (const Validation& v : validations) {
    const std::string behind = v.name.empty() ? "" : "/" + v.name;
    text += fmt::format("{}val_loss{}={:.6f}", text.empty() ? "" : " ", behind, v.loss);
    for (const auto& [name, value] : v.metrics)
      text += fmt::format(" val_{}{}={:.6f}", name, behind, value);
  }
  return text;
}

std::unique_ptr<EvaluationData> ModelFamily::open_evaluation(const Deck& deck, const std::string&,
                                                             Mesh& mesh, Logger& log) const {
  Deck copy = deck;
  const BatchSizes batch = resolve_batch(copy, mesh.along(Axis::data).size());
  std::vector<BatchShape> fixed;
  if (fixed_shape()) fixed.push_back(shape(model(copy), batch.micro));
  return std::make_unique<ValidationOf>(open_data(copy, batch, mesh, log), std::move(fixed));
}

void ModelFamily::evaluate_once(ModelInstance& instance, const ModelBatch& batch) const {
  instance.loss_sums(batch);
}

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
    content.micro_batch_targets.push_back(batches_->targets(index, 1));
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
