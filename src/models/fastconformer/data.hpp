#pragma once
// Training and evaluation data of recognisers: packed speech, and synthetic speech (noise with
// random transcripts) for `choir verify` and for benchmarks.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "choir/models/model.hpp"
#include "choir/run/model_instance.hpp"
#include "choir/run/training_data.hpp"
#include "src/lab/bench/bench_batches.hpp"
#include "src/models/fastconformer/evaluation.hpp"
#include "src/models/fastconformer/fastconformer_config.hpp"
#include "src/models/fastconformer/speech_data.hpp"

namespace choir {

/// Utterances of `choir verify` and of data.format = "synthetic": noise of different loudness and
/// length with random transcripts, as a function of the micro-batch. Micro-batches have one of
/// three shapes, with rows of all lengths; some utterances have no transcript.
class SyntheticUtterances final : public SyntheticBatches {
 public:
  SyntheticUtterances(std::uint64_t seed, const FastConformerConfig& config);

  ModelBatch micro_batch(std::int64_t index) override;
  ByTerm targets(std::int64_t first, std::int64_t count) const override;
  ModelBatch padding() override;
  std::vector<BatchShape> shapes() const override;
  BatchShape shape(std::int64_t index) const override;
  double audio_seconds(std::int64_t index) const override;

 private:
  struct Row {
    std::int64_t samples = 0, labels = 0;
  };
  /// Index of the shape of a micro-batch.
  std::size_t kind(std::int64_t index) const;
  Row row(std::int64_t index, std::int64_t row) const;
  void fill(ModelBatch& batch, std::int64_t index, std::int64_t row) const;

  PhiloxKey shape_key_, audio_key_, label_key_;
  FastConformerConfig config_;
  std::vector<std::unique_ptr<HostBatch>> batches_;  // by kind
  std::unique_ptr<HostBatch> padding_;
};

/// Utterances for benchmarks: noise with random transcripts, in a few micro-batches of utterances
/// that have about the same length, as buckets produce them.
class SyntheticSpeech {
 public:
  static constexpr int kBatches = 4;

  /// Generates all micro-batches. DeckError for impossible durations.
  SyntheticSpeech(const FastConformerConfig& config, const BenchAudio& options);

  /// Micro-batches repeat: number n is that of n % kBatches.
  ModelBatch micro_batch(std::int64_t index) { return batch(index).memory->batch; }
  ModelBatch padding() { return padding_->batch; }  ///< for a rank without work
  std::vector<BatchShape> shapes() const;

  // Content of one micro-batch without padding.
  double seconds(std::int64_t index) const { return batch(index).seconds; }
  double targets(std::int64_t index) const { return batch(index).targets; }
  double flops(std::int64_t index, const Model& model) const;

 private:
  struct Made {
    std::unique_ptr<HostBatch> memory;
    BatchShape shape;
    double seconds = 0, targets = 0;
  };
  const Made& batch(std::int64_t index) const {
    return made_[static_cast<std::size_t>(index % kBatches)];
  }
  Made make(int number) const;
  /// Fills row `row` of `made` with an utterance of this number of samples.
  void fill(Made& made, std::int64_t row, std::int64_t samples, std::int64_t id) const;

  FastConformerConfig config_;
  BenchAudio options_;
  std::vector<Made> made_;
  std::unique_ptr<HostBatch> padding_;
};

class SpeechBenchBatches final : public BenchBatches {
 public:
  SpeechBenchBatches(const FastConformerConfig& config, const BatchSizes& batch,
                     const BenchAudio& audio)
      : speech_(config, audio), batch_(batch) {}

  std::int64_t vocab_size() const override { return 0; }
  std::vector<BatchShape> shapes() const override { return speech_.shapes(); }
  void start(const Sharding& sharding) override {
    first_ = sharding.first_micro_batch(batch_.accum);
    stride_ = sharding.micro_batch_stride();
  }
  // Ranks may have more slots than a step has micro-batches.
  ModelBatch micro_batch(std::int64_t step, std::int64_t j) override {
    const std::int64_t place = first_ + j * stride_;
    if (place >= batch_.global) return speech_.padding();
    return speech_.micro_batch(step * batch_.global + place);
  }
  ByTerm targets(std::int64_t step) const override {
    return sum(step, [&](std::int64_t i) { return speech_.targets(i); });
  }
  double audio_seconds(std::int64_t step) const override {
    return sum(step, [&](std::int64_t i) { return speech_.seconds(i); });
  }
  double flops(std::int64_t step, ModelInstance& instance) const override {
    return sum(step, [&](std::int64_t i) { return speech_.flops(i, instance.model()); });
  }
  StepWork work(const EngineOptions& options, ModelInstance& instance,
                double parts) const override {
    double all = 0;
    for (int i = 0; i < SyntheticSpeech::kBatches; ++i)
      all += speech_.flops(i, instance.model()) / SyntheticSpeech::kBatches;
    StepWork work = update_work(options.precision, instance.storage().slices_size());
    work.gemm_flops = all * static_cast<double>(batch_.accum) / parts;
    return work;
  }

 private:
  template <class Of>
  double sum(std::int64_t step, const Of& of) const {
    double total = 0;
    for (std::int64_t i = step * batch_.global; i < (step + 1) * batch_.global; ++i) total += of(i);
    return total;
  }

  SyntheticSpeech speech_;
  BatchSizes batch_;
  std::int64_t first_ = 0, stride_ = 1;
};

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
  void add_resident(MemoryPlan& plan, const Device* device) const override;
  void load_resident(Device& device) override { data_.set->make_resident(device); }
  void start_training(const Sharding& sharding, std::int64_t per_rank,
                      const Position& from) override;
  std::string position(std::int64_t step) const override { return steps_.position(step); }
  ModelBatch next() override;
  StepContent content(std::int64_t step, const Model& model) override;
  std::string drawn() const override { return drawn_text(data_.set->sources(), drawn_); }
  std::vector<std::string> take_warnings() override;
  bool has_validation() const override { return data_.set->eval_sets() > 0; }
  EvaluationResult validate(ModelInstance& instance, ProgressLine* progress) override {
    SpeechScorer scorer(instance, data_);
    return evaluate_sets(instance, scorer, progress);
  }

 private:
  BatchSizes batch_;
  Mesh& mesh_;
  Logger& log_;
  SpeechData data_;
  PlannedSteps steps_;
  std::vector<std::int64_t> drawn_;  // utterances drawn from each source
};

class SpeechEvaluationData final : public EvaluationData {
 public:
  SpeechEvaluationData(const Deck& deck, const std::string& vocabulary, Mesh& mesh, Logger& log);
  std::vector<BatchShape> shapes() const override {
    return largest_shapes(data_.set->eval_shapes());
  }
  EvaluationResult evaluate(ModelInstance& instance, ProgressLine* progress) override {
    SpeechScorer scorer(instance, data_);
    return evaluate_sets(instance, scorer, progress);
  }

 private:
  SpeechData data_;
};

}  // namespace choir
