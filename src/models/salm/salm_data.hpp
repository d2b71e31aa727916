#pragma once
// Conversations with clips of audio for models that hear.
#include <memory>
#include <string>
#include <vector>

#include "choir/data/conversations/conversation_batches.hpp"
#include "choir/models/fastconformer/planned_steps.hpp"
#include "choir/models/salm/salm_settings.hpp"
#include "choir/train/step/training_data.hpp"
#include "src/models/salm/salm_scores.hpp"

namespace choir {

/// Options of its validation sets.
inline constexpr EvalWords kSalmEvalWords{.tags = true};

/// The conversations that a deck names, opened, and the text of their ids where they have any.
struct SalmData {
  SpeechMix mix;
  std::unique_ptr<ConversationBatches> batches;
  std::unique_ptr<ChatTokenizer> tokenizer;
};
/// Collective over the mesh. `training`: also what data.train names. `vocab_hash`: of the
/// checkpoint, 0 for any. Throws on all ranks: DataError, DeckError.
SalmData open_conversation_data(const Deck& deck, Mesh& mesh, bool training,
                                std::uint64_t vocab_hash = 0);
/// Those of which no other is at least as large in all four.
std::vector<BatchShape> largest_shapes(const std::vector<ConversationShape>& shapes);

class SalmTrainingData final : public TrainingData {
 public:
  SalmTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh, Logger& log);

  std::int64_t vocab_size() const override { return corpus().vocab_size(); }
  std::uint64_t vocab_hash() const override { return corpus().vocab_hash(); }
  std::string vocabulary_json() const override;
  std::string to_string() const override { return data_.batches->to_string(); }
  std::string contents() const override;
  std::vector<std::pair<std::string, std::string>> hints() const override { return {}; }
  std::vector<BatchShape> shapes() const override {
    return largest_shapes(data_.batches->shapes());
  }
  std::vector<BatchShape> validation_shapes() const override {
    return largest_shapes(data_.batches->eval_shapes());
  }
  void require_resumable(std::int64_t) const override {}
  void start_training(const Sharding& sharding, std::int64_t per_rank,
                      const Position& from) override;
  std::string position(std::int64_t step) const override { return steps_.position(step); }
  ModelBatch next() override { return salm_batch(data_.batches->next()); }
  StepContent content(std::int64_t step, const Model& model) override;
  std::string drawn() const override;
  bool has_validation() const override { return data_.batches->eval_sets() > 0; }
  std::vector<Validation> validate(ModelInstance& instance, ProgressLine* progress) override;
  /// Answers of the last validation.
  std::string sample(ModelInstance&) override { return choir::to_string(pairs_); }

 private:
  const ConversationCorpus& corpus() const { return data_.batches->corpus(); }
  /// Adds what one conversation is.
  void add(const SpeechItem& item, const Model& model, StepContent& to);

  SalmSection settings_;
  BatchSizes batch_;
  Mesh& mesh_;
  Logger& log_;
  SalmData data_;
  PlannedSteps steps_;
  std::vector<std::int64_t> drawn_;  // conversations of each folder
  std::vector<AnswerPair> pairs_;
};

class SalmEvaluationData final : public EvaluationData {
 public:
  SalmEvaluationData(const Deck& deck, const std::string& vocabulary, Mesh& mesh);
  std::vector<BatchShape> shapes() const override {
    return largest_shapes(data_.batches->eval_shapes());
  }
  Result evaluate(ModelInstance& instance, ProgressLine* progress) override;

 private:
  SalmSection settings_;
  SalmData data_;
};

}  // namespace choir
