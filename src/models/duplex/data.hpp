#pragma once
// Packed dialogues as training and evaluation data of duplex models, and synthetic dialogues about
// noise for `choir verify`.

#include <memory>
#include <string>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/models/family.hpp"
#include "choir/run/training_data.hpp"
#include "src/data/dialogues/dialogue_batches.hpp"
#include "src/models/duplex/duplex_batch.hpp"
#include "src/models/duplex/evaluation.hpp"
#include "src/models/duplex/family.hpp"
#include "src/models/fastconformer/speech_data.hpp"

namespace choir {

/// Micro-batches of three shapes as functions of their index: dialogues of different length and
/// loudness, with random turns of text and random codes, delayed by a frame.
class SyntheticDialogues final : public SyntheticBatches {
 public:
  /// DeckError if the decoder has fewer positions than the longest dialogue has frames.
  SyntheticDialogues(std::uint64_t seed, const DuplexConfig& config);

  ModelBatch micro_batch(std::int64_t index) override;
  ByTerm targets(std::int64_t first, std::int64_t count) const override;
  ModelBatch padding() override;
  std::vector<BatchShape> shapes() const override;
  BatchShape shape(std::int64_t index) const override;
  double audio_seconds(std::int64_t index) const override;

 private:
  /// Their ids are the last three of the vocabulary.
  DialogueControls controls() const;
  BatchShape shape_of_kind(std::size_t number) const;
  std::size_t kind(std::int64_t index) const;
  /// Number of frames of each dialogue.
  std::vector<std::int64_t> lengths(std::int64_t index) const;
  std::int64_t drawn(std::int64_t id, std::int64_t place, std::int64_t below) const;
  /// The agent's text in each frame and in the one after the last.
  std::vector<std::int32_t> text_of(std::int64_t id, std::int64_t frames) const;
  void fill_agent(ModelBatch& batch, std::int64_t row, std::int64_t id, std::int64_t frames) const;
  void fill_user(ModelBatch& batch, std::int64_t row, std::int64_t id, std::int64_t frames) const;

  PhiloxKey row_key_, audio_key_;
  DuplexConfig config_;
  std::vector<std::unique_ptr<HostBatch>> batches_;
  std::unique_ptr<HostBatch> padding_;
};

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
  ModelBatch next() override;
  StepContent content(std::int64_t step, const Model& model) override;
  std::string drawn() const override { return drawn_text(data_->user().sources(), drawn_); }
  std::vector<std::string> take_warnings() override;
  bool has_validation() const override { return data_->user().eval_sets() > 0; }
  void add_scorers(MemoryPlan& plan, const Device* device) const override {
    if (ear_) ear_->add_to(plan, device);
  }
  void load_scorers(Device& device) override;
  EvaluationResult validate(ModelInstance& instance, ProgressLine* progress) override {
    DuplexScorer scorer(instance, *data_, batches_, options_);
    return evaluate_sets(instance, scorer, progress);
  }

 private:
  ByTerm targets_of(const SpeechItem& item) const;

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
  DuplexEvaluationData(const Deck& deck, const std::string& vocabulary, Mesh& mesh, Logger& log);
  std::vector<BatchShape> shapes() const override;
  void load_scorers(Device& device) override;
  EvaluationResult evaluate(ModelInstance& instance, ProgressLine* progress) override {
    DuplexScorer scorer(instance, *data_, batches_, options_);
    return evaluate_sets(instance, scorer, progress);
  }

 private:
  Mesh& mesh_;
  Logger& log_;
  std::unique_ptr<DialogueBatches> data_;
  DuplexBatches batches_;
  std::unique_ptr<AgentEar> ear_;
  DialogueOptions options_;
};

}  // namespace choir
