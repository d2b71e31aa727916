#pragma once
// Random utterances instead of files, for runs that only want the mathematics: the same as those of
// `choir verify`, a function of the step alone.
#include "choir/train/engine/training_data.hpp"
#include "choir/train/synthetic/synthetic_utterances.hpp"

namespace choir {

/// Local everywhere; without validation.
class SyntheticSpeechData final : public TrainingData {
 public:
  explicit SyntheticSpeechData(const Deck& deck);

  std::int64_t vocab_size() const override { return vocabulary_; }
  std::uint64_t vocab_hash() const override { return 0; }
  std::string vocabulary_json() const override { return {}; }
  std::string to_string() const override;
  std::vector<std::pair<std::string, std::string>> hints() const override { return {}; }
  std::vector<BatchShape> shapes() const override { return utterances_.shapes(); }
  void require_resumable(std::int64_t) const override {}
  void start_training(const Sharding& sharding, std::int64_t per_rank,
                      const Position& from) override;
  ModelBatch next() override;
  StepContent content(std::int64_t step, const Model& model) override;
  bool has_validation() const override { return false; }
  std::vector<Validation> validate(ModelInstance&, ProgressLine*) override { return {}; }
  std::string sample(ModelInstance&) override { return {}; }

 private:
  std::int64_t vocabulary_, micro_batches_;  // of a step, all ranks
  double sample_rate_;
  SyntheticUtterances utterances_;
  std::int64_t first_ = 0, stride_ = 1, per_rank_ = 1;  // places of this rank in a step
  std::int64_t step_ = 0, call_ = 0;
};

}  // namespace choir
