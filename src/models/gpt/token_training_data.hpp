#pragma once
// Windows of tokens as training and evaluation data of language models.
#include "choir/data/tokens/dataset.hpp"
#include "choir/models/gpt/gpt_settings.hpp"
#include "choir/train/step/training_data.hpp"

namespace choir {

class TokenTrainingData final : public TrainingData {
 public:
  TokenTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh, Logger& log);

  std::int64_t vocab_size() const override { return data_->vocab_size(); }
  std::uint64_t vocab_hash() const override { return data_->vocab_hash(); }
  std::string vocabulary_json() const override;
  std::string to_string() const override { return data_->to_string(); }
  std::string contents() const override { return data_->contents(); }
  std::vector<std::pair<std::string, std::string>> hints() const override { return data_->hints(); }
  void require_resumable(std::int64_t consumed_samples) const override;
  void start_training(const Sharding& sharding, std::int64_t per_rank,
                      const Position& from) override;
  ModelBatch next() override;
  StepContent content(std::int64_t step, const Model& model) override;
  bool has_validation() const override { return data_->has_validation(); }
  std::vector<Validation> validate(ModelInstance& instance, ProgressLine* progress) override;
  std::string sample(ModelInstance& instance) override;

 private:
  GptSettings settings_;
  std::uint64_t seed_;
  std::int64_t block_size_;
  BatchSizes batch_;
  Mesh& mesh_;
  Logger& log_;
  std::unique_ptr<Dataset> data_;
};

class TokenEvaluationData final : public EvaluationData {
 public:
  TokenEvaluationData(const Deck& deck, const std::string& vocabulary, Mesh& mesh, Logger& log);
  std::vector<BatchShape> shapes() const override;
  Result evaluate(ModelInstance& instance, ProgressLine* progress) override;

 private:
  static constexpr std::int64_t kRows = 8;
  Mesh& mesh_;
  std::int64_t block_size_;
  std::unique_ptr<Dataset> data_;
};

}  // namespace choir
