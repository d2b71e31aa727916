#pragma once
// Conversations with audio clips as training and evaluation data, and synthetic conversations about
// noise for `choir verify`.

#include <memory>
#include <string>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/models/family.hpp"
#include "choir/run/training_data.hpp"
#include "src/data/chat/conversation_batches.hpp"
#include "src/models/fastconformer/speech_data.hpp"
#include "src/models/salm/evaluation.hpp"
#include "src/models/salm/family.hpp"
#include "src/models/salm/salm_config.hpp"

namespace choir {

/// Micro-batches of three shapes as functions of their index: conversations with up to two clips of
/// different loudness and length between random tokens, some of which are targets.
class SyntheticConversations final : public SyntheticBatches {
 public:
  SyntheticConversations(std::uint64_t seed, const SalmConfig& config);

  ModelBatch micro_batch(std::int64_t index) override;
  ByTerm targets(std::int64_t first, std::int64_t count) const override;
  ModelBatch padding() override;
  std::vector<BatchShape> shapes() const override;
  BatchShape shape(std::int64_t index) const override;
  double audio_seconds(std::int64_t index) const override;

 private:
  struct Row {
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> counted;
    std::vector<std::int64_t> clip_samples;
  };
  /// Index of the shape of a micro-batch.
  std::size_t kind(std::int64_t index) const;
  std::vector<Row> rows(std::int64_t index) const;
  BatchShape shape_of_kind(std::size_t kind) const;
  void fill_audio(ModelBatch& batch, std::int64_t clip, std::int64_t id,
                  std::int64_t samples) const;

  PhiloxKey row_key_, audio_key_;
  SalmConfig config_;
  std::vector<std::unique_ptr<HostBatch>> batches_;  // by kind
  std::unique_ptr<HostBatch> padding_;
};

/// Options that validation sets may have.
inline constexpr EvalWords kSalmEvalWords{.durations = true, .tags = true, .answers = true};

/// The opened conversations of a deck, with their tokenizer if they have one.
struct SalmData {
  SpeechMix mix;
  std::unique_ptr<ConversationBatches> batches;
  std::unique_ptr<ChatTokenizer> tokenizer;
  std::vector<AnswerOptions> answers;  ///< of each validation set

  /// Collective over the mesh of the instance. Evaluates the validation sets.
  EvaluationResult evaluate(ModelInstance& instance, ProgressLine* progress);
};
/// Collective over the mesh. `training`: opens data.train as well. `vocab_hash`: that of the
/// checkpoint, 0 for any. Throws on all ranks: DataError, DeckError.
SalmData open_conversation_data(const Deck& deck, Mesh& mesh, bool training,
                                std::uint64_t vocab_hash = 0);
/// The shapes for which no other is at least as large in all four extents.
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
  EvaluationResult validate(ModelInstance& instance, ProgressLine* progress) override {
    return data_.evaluate(instance, progress);
  }

 private:
  const ConversationCorpus& corpus() const { return data_.batches->corpus(); }
  /// Adds the content of one conversation.
  void add(const SpeechItem& item, const Model& model, StepContent& to);

  SalmSection settings_;
  BatchSizes batch_;
  Mesh& mesh_;
  Logger& log_;
  SalmData data_;
  PlannedSteps steps_;
  std::vector<std::int64_t> drawn_;  // conversations drawn from each folder
};

class SalmEvaluationData final : public EvaluationData {
 public:
  SalmEvaluationData(const Deck& deck, const std::string& vocabulary, Mesh& mesh);
  std::vector<BatchShape> shapes() const override {
    return largest_shapes(data_.batches->eval_shapes());
  }
  EvaluationResult evaluate(ModelInstance& instance, ProgressLine* progress) override {
    return data_.evaluate(instance, progress);
  }

 private:
  SalmSection settings_;
  SalmData data_;
};

}  // namespace choir
