#pragma once
// Training and evaluation data of codecs: packed speech, whose transcripts are not read, and random
// sounds for `choir verify`.

#include <memory>
#include <string>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/models/family.hpp"
#include "choir/run/training_data.hpp"
#include "src/models/codec/codec_config.hpp"
#include "src/models/codec/evaluation.hpp"
#include "src/models/codec/family.hpp"
#include "src/models/fastconformer/speech_data.hpp"

namespace choir {

/// Micro-batches of three shapes as functions of their index: noise of different loudness, with
/// lengths that are not whole frames, some of them shorter by several frames than others in the
/// batch.
class SyntheticSounds final : public SyntheticBatches {
 public:
  SyntheticSounds(std::uint64_t seed, const CodecConfig& config);

  ModelBatch micro_batch(std::int64_t index) override;
  ByTerm targets(std::int64_t first, std::int64_t count) const override;
  ModelBatch padding() override { return padding_->batch; }
  std::vector<BatchShape> shapes() const override;
  BatchShape shape(std::int64_t index) const override;
  double audio_seconds(std::int64_t index) const override;

 private:
  /// Index of the shape of a micro-batch.
  std::size_t kind(std::int64_t index) const;
  BatchShape shape_of_kind(std::size_t kind) const;
  /// Samples of a row.
  std::int64_t length(std::int64_t index, std::int64_t row) const;

  PhiloxKey length_key_, audio_key_;
  CodecConfig config_;
  std::vector<std::unique_ptr<HostBatch>> batches_;  // by kind
  std::unique_ptr<HostBatch> padding_;
};

class CodecTrainingData final : public TrainingData {
 public:
  CodecTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh, Logger& log);

  std::int64_t vocab_size() const override { return 0; }
  std::uint64_t vocab_hash() const override { return 0; }
  std::string vocabulary_json() const override { return {}; }
  std::string to_string() const override { return data_->to_string(); }
  std::string contents() const override;
  std::vector<std::pair<std::string, std::string>> hints() const override { return data_->hints(); }
  std::vector<BatchShape> shapes() const override { return largest_shapes(data_->shapes()); }
  std::vector<BatchShape> validation_shapes() const override {
    return largest_shapes(data_->eval_shapes());
  }
  void require_resumable(std::int64_t) const override {}
  void start_training(const Sharding& sharding, std::int64_t per_rank,
                      const Position& from) override;
  std::string position(std::int64_t step) const override { return steps_.position(step); }
  ModelBatch next() override;
  StepContent content(std::int64_t step, const Model& model) override;
  std::string drawn() const override { return drawn_text(data_->sources(), drawn_); }
  std::vector<std::string> take_warnings() override;
  bool has_validation() const override { return data_->eval_sets() > 0; }
  EvaluationResult validate(ModelInstance& instance, ProgressLine* progress) override {
    CodecScorer scorer(instance, *data_);
    return evaluate_sets(instance, scorer, progress);
  }

 private:
  ByTerm targets_of(const SpeechItem& item) const {
    return {terms_, static_cast<double>(config_.frames(item.samples))};
  }

  CodecConfig config_;
  BatchSizes batch_;
  Mesh& mesh_;
  Logger& log_;
  std::size_t terms_;  // terms of the loss, all with the same targets
  std::unique_ptr<SpeechDataset> data_;
  PlannedSteps steps_;
  std::vector<std::int64_t> drawn_;  // utterances drawn from each source
  std::vector<std::int32_t> lengths_;
};

class CodecEvaluationData final : public EvaluationData {
 public:
  CodecEvaluationData(const Deck& deck, Mesh& mesh)
      : data_(open_recordings(deck, codec_request(deck), mesh, false)) {}
  std::vector<BatchShape> shapes() const override { return largest_shapes(data_->eval_shapes()); }
  EvaluationResult evaluate(ModelInstance& instance, ProgressLine* progress) override {
    CodecScorer scorer(instance, *data_);
    return evaluate_sets(instance, scorer, progress);
  }

 private:
  std::unique_ptr<SpeechDataset> data_;
};

}  // namespace choir
