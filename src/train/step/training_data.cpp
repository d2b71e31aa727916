// Defaults of a family: evaluation of a model whose training data has validation data.
#include "choir/train/step/training_data.hpp"

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
                         const ByTerm& targets) {
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

}  // namespace choir
