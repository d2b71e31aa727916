// Defaults of a family: evaluation of a model whose training data has validation data; and
// synthetic training data.

#include "choir/run/training_data.hpp"

#include <cmath>

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
  EvaluationResult evaluate(ModelInstance& instance, ProgressLine* progress) override {
    return data_->validate(instance, progress);
  }

 private:
  std::unique_ptr<TrainingData> data_;
  std::vector<BatchShape> fixed_;
};

/// Four synthetic micro-batches that training never reaches.
class SyntheticScorer final : public SetScorer {
 public:
  SyntheticScorer(ModelInstance& instance, SyntheticBatches& batches)
      : instance_(instance), batches_(batches), meaning_(batches.targets(kFirst, 1).size()) {}

  const ScoreMeaning& meaning() const override { return meaning_; }
  int sets() const override { return 1; }
  std::string name(int) const override { return {}; }
  std::int64_t calls(int) const override { return (kCount + ranks().size() - 1) / ranks().size(); }
  void score(int, std::int64_t call, SetSums& sums) override {
    const std::int64_t number = call * ranks().size() + ranks().rank();
    const bool empty = number >= kCount;
    if (sums.leaves_out(empty)) return;
    const ByTerm losses = instance_.loss_sums(batches_.micro_batch(kFirst + (empty ? 0 : number)));
    if (empty) return;
    sums.add_losses(losses);
    std::vector<std::int64_t> targets;
    for (const double counted : batches_.targets(kFirst + number, 1))
      targets.push_back(std::llround(counted));
    sums.add(kTargetsCounter, targets);
  }

 private:
  static constexpr std::int64_t kFirst = std::int64_t{1} << 32, kCount = 4;
  struct Meaning final : ScoreMeaning {
    explicit Meaning(std::size_t terms) : counted(terms) {}
    std::vector<ScoreCounter> counters() const override { return {{kTargetsCounter, counted}}; }
    std::string describe(const Scores&, Validation&) const override { return {}; }
    std::size_t counted;
  };
  const Communicator& ranks() const { return instance_.mesh().host_along(Axis::data); }

  ModelInstance& instance_;
  SyntheticBatches& batches_;
  Meaning meaning_;
};

}  // namespace

std::unique_ptr<EvaluationData> ModelFamily::open_evaluation(const Deck& deck, const std::string&,
                                                             Mesh& mesh, Logger& log) const {
  Deck copy = deck;
  // A batch that the training derived from its ranks is none of these ranks.
  if (!deck.given("train.global_batch_size")) copy.train.global_batch_size = 0;
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

EvaluationResult SyntheticData::validate(ModelInstance& instance, ProgressLine* progress) {
  SyntheticScorer scorer(instance, *batches_);
  return evaluate_sets(instance, scorer, progress);
}

}  // namespace choir
