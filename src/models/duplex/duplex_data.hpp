#pragma once
// Packed dialogues as training and evaluation data of duplex models.
#include <memory>
#include <string>
#include <vector>

#include "choir/data/dialogues/dialogue_batches.hpp"
#include "choir/models/duplex/duplex_settings.hpp"
#include "choir/models/fastconformer/planned_steps.hpp"
#include "choir/train/step/training_data.hpp"
#include "src/models/duplex/dialogue_scores.hpp"

namespace choir {

/// Collective over the mesh. Opens the dialogues of a deck. `training`: opens data.train as well.
/// `vocabulary`: that of a checkpoint (DialogueMeaning), "" for any. Throws on all ranks:
/// DataError, DeckError (nothing to read; dialogues longer than the language model's positions).
std::unique_ptr<DialogueBatches> open_dialogues(const Deck& deck, Mesh& mesh, bool training,
                                                const std::string& vocabulary = "");

class DuplexTrainingData final : public TrainingData {
 public:
  DuplexTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh, Logger& log);

  std::int64_t vocab_size() const override { return data_->form().vocab_size; }
  std::uint64_t vocab_hash() const override { return data_->form().vocab_hash; }
  std::string vocabulary_json() const override { return data_->meaning().to_json(); }
  std::string to_string() const override { return data_->to_string(); }
  std::string contents() const override;
  std::vector<std::pair<std::string, std::string>> hints() const override {
    return data_->user().hints();
  }
  std::vector<BatchShape> shapes() const override;
  std::vector<BatchShape> validation_shapes() const override;
  void require_resumable(std::int64_t) const override {}
  void start_training(const Sharding& sharding, std::int64_t per_rank,
                      const Position& from) override;
  std::string position(std::int64_t step) const override { return steps_.position(step); }
  ModelBatch next() override { return batches_.of(data_->next()); }
  StepContent content(std::int64_t step, const Model& model) override;
  std::string drawn() const override { return drawn_text(data_->user().sources(), drawn_); }
  std::vector<std::string> take_warnings() override;
  bool has_validation() const override { return data_->user().eval_sets() > 0; }
  std::vector<Validation> validate(ModelInstance& instance, ProgressLine* progress) override;
  std::string sample(ModelInstance&) override { return {}; }

 private:
  BatchSizes batch_;
  Mesh& mesh_;
  Logger& log_;
  std::unique_ptr<DialogueBatches> data_;
  DuplexBatches batches_;
  std::unique_ptr<AgentEar> ear_;
  DialogueOptions options_;
  PlannedSteps steps_;
  std::vector<std::int64_t> drawn_;  // dialogues drawn from each source
};

class DuplexEvaluationData final : public EvaluationData {
 public:
  /// Collective over the mesh. `vocabulary`: see open_dialogues().
  DuplexEvaluationData(const Deck& deck, const std::string& vocabulary, Mesh& mesh);
  std::vector<BatchShape> shapes() const override;
  Result evaluate(ModelInstance& instance, ProgressLine* progress) override;

 private:
  std::unique_ptr<DialogueBatches> data_;
  DuplexBatches batches_;
  std::unique_ptr<AgentEar> ear_;
  DialogueOptions options_;
};

}  // namespace choir
