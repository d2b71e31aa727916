#pragma once
// The synthetic micro-batches of a family as training data, for runs that need only the
// mathematics: the contents of a step are a function of the step. No file is read.
#include <memory>

#include "choir/models/synthetic_batches.hpp"
#include "choir/train/step/training_data.hpp"

namespace choir {

/// Local except for validate().
class SyntheticData final : public TrainingData {
 public:
  /// `description` is the result of to_string(). With `validates` there is validation data:
  /// micro-batches that training never reaches.
  SyntheticData(std::unique_ptr<SyntheticBatches> batches, const ModelConfig& config,
                const BatchSizes& batch, std::string description, bool validates = false);

  std::int64_t vocab_size() const override { return vocabulary_; }
  std::uint64_t vocab_hash() const override { return 0; }
  std::string vocabulary_json() const override { return {}; }
  std::string to_string() const override { return description_; }
  std::vector<std::pair<std::string, std::string>> hints() const override { return {}; }
  std::vector<BatchShape> shapes() const override { return batches_->shapes(); }
  void require_resumable(std::int64_t) const override {}
  void start_training(const Sharding& sharding, std::int64_t per_rank,
                      const Position& from) override;
  ModelBatch next() override;
  StepContent content(std::int64_t step, const Model& model) override;
  bool has_validation() const override { return validates_; }
  std::vector<Validation> validate(ModelInstance& instance, ProgressLine* progress) override;
  std::string sample(ModelInstance&) override { return {}; }

 private:
  std::unique_ptr<SyntheticBatches> batches_;
  std::int64_t vocabulary_, micro_batches_;  // per step on all ranks
  std::string description_;
  bool validates_;
  std::int64_t first_ = 0, stride_ = 1, per_rank_ = 1;  // positions of this rank in a step
  std::int64_t step_ = 0, call_ = 0;
};

}  // namespace choir
