#pragma once
// The interface of training data, independent of the kind of model: micro-batches of this rank,
// counts of whole steps, validation, and samples of the model's output. Synthetic micro-batches of
// a family implement it for runs that need only the mathematics.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "choir/run/evaluator.hpp"
#include "choir/run/model_instance.hpp"

namespace choir {

/// The numbers of targets that data announce for one step (see targets_of_terms()).
struct StepTargets {
  StepTargets() = default;
  StepTargets(const ByTerm& of_step) : all(of_step) {}
  StepTargets(double only) : all(only) {}

  ByTerm all;  ///< of the global batch: the divisors of the losses
  /// The same of each of its micro-batches, in the order of their global index, for messages; may
  /// be empty.
  std::vector<ByTerm> by_micro_batch{};
};

/// Contents of all micro-batches of one step on all ranks; equal on every rank.
struct StepContent {
  double samples = 0;  ///< sequences or utterances
  ByTerm targets;      ///< number of targets of each term, by which its losses are divided
  /// StepTargets::by_micro_batch; may be empty.
  std::vector<ByTerm> micro_batch_targets{};
  double audio_seconds = 0;  ///< speech
  double flops = 0;          ///< FLOPs of the model, for the MFU
  /// Adds another step. The targets of micro-batches are not kept.
  void add(const StepContent& other) {
    samples += other.samples;
    targets += other.targets;
    audio_seconds += other.audio_seconds;
    flops += other.flops;
  }
};

/// The result of a step. It is equal on every rank, because the sums are global.
struct StepResult {
  double loss = 0;  ///< the weighted sum of the terms
  ByTerm terms;     ///< mean of each term over its targets in the global batch; 0 without targets
  ByTerm targets;   ///< number of these targets
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  bool updated = true;    ///< false: loss or norm was not finite, and nothing was changed
  bool overflow = false;  ///< not updated, but a smaller loss scale may help
  double loss_scale = 1;  ///< of this step
};

/// The validation data of a deck, for a model that is already trained.
class EvaluationData {
 public:
  virtual ~EvaluationData() = default;
  /// The shapes that its micro-batches may have.
  virtual std::vector<BatchShape> shapes() const = 0;
  /// Loads the models of other runs that score the evaluation; see TrainingData::load_scorers.
  virtual void load_scorers(Device& /*device*/) {}
  /// Collective over the mesh of the instance.
  virtual EvaluationResult evaluate(ModelInstance& instance, ProgressLine* progress) = 0;
};

class TrainingData {
 public:
  virtual ~TrainingData() = default;

  /// The smallest legal model.vocab_size; 0: unknown. `vocab_hash` 0: any.
  virtual std::int64_t vocab_size() const = 0;
  virtual std::uint64_t vocab_hash() const = 0;
  /// Stored in checkpoints; "" if there is none.
  virtual std::string vocabulary_json() const = 0;
  /// A description for the log, of a few lines.
  virtual std::string to_string() const = 0;
  /// Identifies the contents, wherever they are stored; "": unknown. Local, for rank 0, which may
  /// read files.
  virtual std::string contents() const { return {}; }
  /// The MPI-IO hints of data.hints that MPI adopted.
  virtual std::vector<std::pair<std::string, std::string>> hints() const = 0;
  /// The shapes that micro-batches may have in training and in validation; empty if the family has
  /// a fixed shape.
  virtual std::vector<BatchShape> shapes() const { return {}; }
  virtual std::vector<BatchShape> validation_shapes() const { return {}; }

  /// Throws DeckError if training cannot continue after this number of samples. Local.
  virtual void require_resumable(std::int64_t consumed_samples) const = 0;
  /// A position in the data.
  struct Position {
    std::int64_t step = 0;              ///< steps done
    std::int64_t consumed_samples = 0;  ///< samples in these steps
    std::string more;                   ///< the value of position() then; "" if there is none
  };
  /// Starts at a position; the engine then requests `per_rank` micro-batches per step. Collective.
  virtual void start_training(const Sharding& sharding, std::int64_t per_rank,
                              const Position& from) = 0;
  /// Returns JSON for Position::more after `step` steps, or "". content() must have been called for
  /// the last of these steps. Local.
  virtual std::string position(std::int64_t /*step*/) const { return {}; }
  /// Returns this rank's next micro-batch, in host memory that stays valid until the next call. A
  /// rank without further utterances gets padding. Collective.
  virtual ModelBatch next() = 0;
  /// Returns the contents of step `step` (from 0). Steps are requested in order, and again while
  /// they are in flight. Local.
  virtual StepContent content(std::int64_t step, const Model& model) = 0;
  /// For the log: the share of each source in the steps since the start for which content() was
  /// called; "" if there is only one source. Local.
  virtual std::string drawn() const { return {}; }
  /// Warnings about the data since the last call, on rank 0. Collective over the mesh.
  virtual std::vector<std::string> take_warnings() { return {}; }

  /// The name of the training data in the plan, with data.preload = "device".
  static constexpr const char* kResident = "training data";
  /// Adds the memory for training data that are kept in that of a device like `device`; nullptr: a
  /// CPU. Local.
  virtual void add_resident(MemoryPlan& /*plan*/, const Device* /*device*/) const {}
  /// Reads these data into the memory of the device of the rank, which must outlive this; called
  /// before start_training(). Collective over the mesh.
  virtual void load_resident(Device& /*device*/) {}

  virtual bool has_validation() const = 0;
  /// Adds the memory of the models of other runs that score validations to the plan of a rank that
  /// computes on a device like `device`; nullptr: on a CPU. Local.
  virtual void add_scorers(MemoryPlan& /*plan*/, const Device* /*device*/) const {}
  /// Loads these models, before the first validation. `device`: that of the rank, which must
  /// outlive this. Collective over the mesh.
  virtual void load_scorers(Device& /*device*/) {}
  /// Evaluates the validation data. Collective over the mesh.
  virtual EvaluationResult validate(ModelInstance& instance, ProgressLine* progress) = 0;
  /// Returns a sample of the model's output for people on rank 0; "" on other ranks, or if there is
  /// none besides the examples of the last evaluation. Shows how much of it is done in `progress`.
  /// Collective over the mesh, if it needs the other ranks.
  virtual std::string sample(ModelInstance&, ProgressLine* /*progress*/) { return {}; }
};

/// Local except for validate().
class SyntheticData final : public TrainingData {
 public:
  /// `description` is the result of to_string(). With `validates` there is validation data:
  /// micro-batches that training never reaches.
  SyntheticData(std::unique_ptr<SyntheticBatches> batches, const ModelConfig& config,
                const BatchSizes& batch, std::string description, bool validates = false);

  std::int64_t vocab_size() const override { return vocabulary_; }
  std::uint64_t vocab_hash() const override { return 0; }
  std::string vocabulary_json() const override { return {}; }
  std::string to_string() const override { return description_; }
  std::vector<std::pair<std::string, std::string>> hints() const override { return {}; }
  std::vector<BatchShape> shapes() const override { return batches_->shapes(); }
  void require_resumable(std::int64_t) const override {}
  void start_training(const Sharding& sharding, std::int64_t per_rank,
                      const Position& from) override;
  ModelBatch next() override;
  StepContent content(std::int64_t step, const Model& model) override;
  bool has_validation() const override { return validates_; }
  EvaluationResult validate(ModelInstance& instance, ProgressLine* progress) override;

 private:
  std::unique_ptr<SyntheticBatches> batches_;
  std::int64_t vocabulary_, micro_batches_;  // per step on all ranks
  std::string description_;
  bool validates_;
  std::int64_t first_ = 0, stride_ = 1, per_rank_ = 1;  // positions of this rank in a step
  std::int64_t step_ = 0, call_ = 0;
};

}  // namespace choir
