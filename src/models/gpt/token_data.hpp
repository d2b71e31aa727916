#pragma once
// Windows of tokens for language models: the data that a deck names, opened for the ranks of a
// mesh; training and evaluation on them; batches of `choir bench step`; random tokens for `choir
// verify`.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/core/philox.hpp"
#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "choir/run/model_instance.hpp"
#include "choir/run/training_data.hpp"
#include "src/data/text/dataset.hpp"
#include "src/lab/bench/bench_batches.hpp"
#include "src/models/gpt/family.hpp"
#include "src/models/gpt/gpt_config.hpp"

namespace choir {

/// Collective over the mesh: ranks of the data axis read their parts, and the first rank of the
/// tensor axis passes what it read to the others. For evaluation alone, `trained` is the vocabulary
/// of the checkpoint as JSON, "" if it has none: then only the validation data are opened, if the
/// deck names them.
std::unique_ptr<Dataset> open_data(const Deck& deck, std::int64_t rows, Mesh& mesh, Logger& log,
                                   const std::string* trained = nullptr);

/// For commands that train nothing: replaces the text of the shipped decks, if it is missing, by
/// random tokens, and a vocabulary that the data would give by one of its size. Returns the
/// sentence that tells so; "" if the text is there or the deck names other data. Local.
std::string replace_missing_text(Deck& deck);

/// The micro-batches that an engine on this rank asks for, `per_rank` in each step, from the sample
/// `first_sample` on. Local.
MicroBatchOrder micro_batch_order(const Sharding& sharding, std::int64_t per_rank,
                                  std::int64_t first_sample);

/// The seed of the order of training data (data.shard_seed), the same on all ranks. Collective over
/// the world.
std::uint64_t order_seed(const Deck& deck, Mesh& mesh);

/// A batch in the engine's form: the same host memory, flat.
ModelBatch token_batch(const Batch& batch);

/// Derives the perplexity of a language model from the sums of validation. `counted`: the name
/// of its targets in results.
class TokenMeaning final : public ScoreMeaning {
 public:
  explicit TokenMeaning(std::string counted) : counted_(std::move(counted)) {}
  std::string describe(const Scores& scores, Validation& to) const override;

 private:
  std::string counted_;
};

/// The validation windows of a data set; the last may be shorter. Everything referred to must
/// outlive this.
class TokenScorer final : public SetScorer {
 public:
  TokenScorer(ModelInstance& instance, Dataset& data) : instance_(instance), data_(data) {}
  const ScoreMeaning& meaning() const override { return meaning_; }
  int sets() const override { return data_.eval_sets(); }
  std::string name(int set) const override { return data_.eval_name(set); }
  std::int64_t calls(int set) const override { return data_.eval_calls(set); }
  void score(int set, std::int64_t call, SetSums& sums) override;

 private:
  ModelInstance& instance_;
  Dataset& data_;
  TokenMeaning meaning_{"tokens"};
};

/// The mean loss over all validation data. Collective over the mesh.
double validation_loss(ModelInstance& instance, Dataset& data);

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
  void add_resident(MemoryPlan& plan, const Device* device) const override;
  void load_resident(Device& device) override { data_->make_resident(device); }
  ModelBatch next() override;
  /// Collective if documents are separate and data.prefetch is 0, since it then reads the step.
  StepContent content(std::int64_t step, const Model& model) override;
  bool has_validation() const override { return data_->has_validation(); }
  EvaluationResult validate(ModelInstance& instance, ProgressLine* progress) override {
    TokenScorer scorer(instance, *data_);
    return evaluate_sets(instance, scorer, progress);
  }
  std::string sample(ModelInstance& instance, ProgressLine* progress) override;

 private:
  bool separates() const { return settings_.documents == "separate"; }

  GptSettings settings_;
  std::uint64_t seed_;
  std::int64_t block_size_;
  BatchSizes batch_;
  Mesh& mesh_;
  Logger& log_;
  std::unique_ptr<Dataset> data_;
  std::int64_t first_step_ = 0;  // of this start
};

class TokenEvaluationData final : public EvaluationData {
 public:
  TokenEvaluationData(const Deck& deck, const std::string& vocabulary, Mesh& mesh, Logger& log);
  std::vector<BatchShape> shapes() const override;
  EvaluationResult evaluate(ModelInstance& instance, ProgressLine* progress) override {
    TokenScorer scorer(instance, *data_);
    return evaluate_sets(instance, scorer, progress);
  }

 private:
  static constexpr std::int64_t kRows = 8;
  std::int64_t block_size_;
  std::unique_ptr<Dataset> data_;
};

/// Weights that take part in matrix products, the head included.
std::int64_t matmul_weights(const GptConfig& config);

/// The work of a step on `sequences` of `config.block_size` tokens on this rank, which updates
/// `parameters` parameters.
StepWork step_work(const GptConfig& config, const Precision& precision, std::int64_t sequences,
                   std::int64_t parameters);

class TokenBenchBatches final : public BenchBatches {
 public:
  TokenBenchBatches(const Deck& deck, const BatchSizes& batch, Mesh& mesh, Logger& log);
  std::int64_t vocab_size() const override { return data_->vocab_size(); }
  void start(const Sharding& sharding) override;
  ModelBatch micro_batch(std::int64_t step, std::int64_t j) override;
  ByTerm targets(std::int64_t step) const override;
  ByTerm repeated_targets(std::int64_t step, const ModelBatch& one) const override;
  double flops(std::int64_t step, ModelInstance& instance) const override;
  StepWork work(const EngineOptions& options, ModelInstance& instance, double parts) const override;

 private:
  std::unique_ptr<Dataset> data_;
  BatchSizes batch_;
  double tokens_;
  bool documents_;
  std::int64_t micro_batches_ = 0;  // since the start
};

class SyntheticTokens final : public SyntheticBatches {
 public:
  /// Micro-batches of `rows` sequences of `tokens` tokens below `vocabulary`.
  SyntheticTokens(std::uint64_t seed, std::int64_t rows, std::int64_t tokens,
                  std::int64_t vocabulary, bool packed = false);

  /// The micro-batch of this global index; valid until the next call.
  ModelBatch micro_batch(std::int64_t index) override;
  BatchShape shape(std::int64_t) const override { return {.samples = rows_, .tokens = tokens_}; }
  ByTerm targets(std::int64_t first, std::int64_t count) const override {
    return static_cast<double>(valid(first * rows_, count * rows_));
  }
  /// Targets that are not masked in samples [first, first + count).
  std::int64_t valid(std::int64_t first, std::int64_t count) const;

 private:
  /// Number of first targets of a sample that are not masked.
  std::int64_t length(std::int64_t sample) const;

  void write_documents(std::int64_t sample, std::int64_t row);

  PhiloxKey tokens_key_, length_key_, documents_key_;
  std::int64_t rows_, tokens_, vocabulary_;
  std::vector<std::int32_t> inputs_, targets_, begins_, positions_;
};

}  // namespace choir
