#pragma once
// Packed speech as training and evaluation data of recognisers.
#include "choir/models/fastconformer/planned_steps.hpp"
#include "choir/train/step/training_data.hpp"
#include "src/models/fastconformer/speech_scores.hpp"

namespace choir {

class SpeechTrainingData final : public TrainingData {
 public:
  SpeechTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh, Logger& log);

  std::int64_t vocab_size() const override { return data_.set->vocab_size(); }
  std::uint64_t vocab_hash() const override { return data_.set->tokenizer_hash(); }
  std::string vocabulary_json() const override { return data_.vocabulary.to_json(); }
  std::string to_string() const override;
  std::string contents() const override;
  std::vector<std::pair<std::string, std::string>> hints() const override {
    return data_.set->hints();
  }
  std::vector<BatchShape> shapes() const override { return largest_shapes(data_.set->shapes()); }
  std::vector<BatchShape> validation_shapes() const override {
    return largest_shapes(data_.set->eval_shapes());
  }
  void require_resumable(std::int64_t) const override {}
  void start_training(const Sharding& sharding, std::int64_t per_rank,
                      const Position& from) override;
  std::string position(std::int64_t step) const override { return steps_.position(step); }
  ModelBatch next() override { return speech_batch(data_.set->next()); }
  StepContent content(std::int64_t step, const Model& model) override;
  std::string drawn() const override { return drawn_text(data_.set->sources(), drawn_); }
  std::vector<std::string> take_warnings() override;
  bool has_validation() const override { return data_.set->eval_sets() > 0; }
  std::vector<Validation> validate(ModelInstance& instance, ProgressLine* progress) override;
  std::string sample(ModelInstance& instance) override;

 private:
  BatchSizes batch_;
  Mesh& mesh_;
  Logger& log_;
  SpeechData data_;
  PlannedSteps steps_;
  std::vector<std::int64_t> drawn_;  // utterances drawn from each source
  std::vector<HeardPair> pairs_;
};

class SpeechEvaluationData final : public EvaluationData {
 public:
  SpeechEvaluationData(const Deck& deck, const std::string& vocabulary, Mesh& mesh);
  std::vector<BatchShape> shapes() const override {
    return largest_shapes(data_.set->eval_shapes());
  }
  Result evaluate(ModelInstance& instance, ProgressLine* progress) override;

 private:
  SpeechData data_;
};

}  // namespace choir
