#pragma once
// What the trainer needs of data, whatever the model reads: micro-batches of this rank, counts of
// whole steps, validation, samples of what the model makes.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/progress_line.hpp"
#include "choir/deck/deck.hpp"
#include "choir/infer/model_instance.hpp"

namespace choir {

/// All micro-batches of one step, on all ranks; the same numbers on every rank.
struct StepContent {
  double samples = 0;        ///< sequences or utterances
  ByTerm targets;            ///< that count: what the losses of each term are divided by
  double audio_seconds = 0;  ///< speech
  double flops = 0;          ///< of the model, for the MFU
  void add(const StepContent& other) {
    samples += other.samples;
    targets += other.targets;
    audio_seconds += other.audio_seconds;
    flops += other.flops;
  }
};

/// The losses of one validation set. The same on every rank.
struct Validation {
  std::string name;  ///< "": the only one, or all together
  double loss = 0;
  std::vector<std::pair<std::string, double>> metrics;  ///< "wer", "cer" ...
};
/// Sums of each term's losses over so many targets become the loss and, of several terms, each as
/// a metric.
Validation validation_of(const std::vector<LossTerm>& terms, const ByTerm& sums,
                         const ByTerm& targets);

/// "val_loss=1.234567 val_wer=0.012345 val_loss/NAME=...": for one line of the log.
std::string metrics_text(const std::vector<Validation>& validations);

/// The validation data that a deck names, for a model that was trained before.
class EvaluationData {
 public:
  virtual ~EvaluationData() = default;
  /// How large its micro-batches may be.
  virtual std::vector<BatchShape> shapes() const = 0;
  struct Result {
    std::vector<std::string> lines;  ///< for people, what there is to say beside the metrics
    std::string metrics;             ///< "val_loss=1.234567 ...", for one line of the log
  };
  /// Collective over the mesh of the instance. The same on every rank.
  virtual Result evaluate(ModelInstance& instance, ProgressLine* progress) = 0;
};

class TrainingData {
 public:
  virtual ~TrainingData() = default;

  /// What model.vocab_size must reach; 0: unknown. `vocab_hash` 0: any.
  virtual std::int64_t vocab_size() const = 0;
  virtual std::uint64_t vocab_hash() const = 0;
  /// Kept in checkpoints; "" for none.
  virtual std::string vocabulary_json() const = 0;
  /// For the log: a few lines.
  virtual std::string to_string() const = 0;
  /// Local, for rank 0, which may read. Equal for the same contents wherever they are; "": unknown.
  virtual std::string contents() const { return {}; }
  /// What MPI made of data.hints.
  virtual std::vector<std::pair<std::string, std::string>> hints() const = 0;
  /// How large micro-batches may be, in training and in validation; empty where the family has a
  /// fixed shape.
  virtual std::vector<BatchShape> shapes() const { return {}; }
  virtual std::vector<BatchShape> validation_shapes() const { return {}; }

  /// Local. DeckError where training cannot go on after so many samples.
  virtual void require_resumable(std::int64_t consumed_samples) const = 0;
  /// Where a run stands in data.
  struct Position {
    std::int64_t step = 0;              ///< steps done
    std::int64_t consumed_samples = 0;  ///< in them
    std::string more;                   ///< what position() said then; "" for nothing
  };
  /// Collective. From a position on; an engine asks for `per_rank` micro-batches a step.
  virtual void start_training(const Sharding& sharding, std::int64_t per_rank,
                              const Position& from) = 0;
  /// Local. After `step` steps, of which the last is one that content() was asked for: JSON for
  /// Position::more, or "".
  virtual std::string position(std::int64_t /*step*/) const { return {}; }
  /// Collective. This rank's next micro-batch, in host memory that holds until the next call. A
  /// rank that ran out of utterances gets one of padding.
  virtual ModelBatch next() = 0;
  /// Local. Of step `step`, from 0: each is asked for in turn, and again while it is in flight.
  virtual StepContent content(std::int64_t step, const Model& model) = 0;
  /// Local. For the log: which part each source had in the steps that content() was asked for since
  /// the start; "" where there is one source only.
  virtual std::string drawn() const { return {}; }
  /// Collective over the mesh. What is to be said of the data since the last call; on rank 0.
  virtual std::vector<std::string> take_warnings() { return {}; }

  virtual bool has_validation() const = 0;
  /// Collective over the mesh. The first decides what the best checkpoint is.
  virtual std::vector<Validation> validate(ModelInstance& instance, ProgressLine* progress) = 0;
  /// Collective over the mesh, as far as it needs the ranks. For people: on rank 0 what the model
  /// makes now; elsewhere, or where there is nothing to show, "".
  virtual std::string sample(ModelInstance& instance) = 0;
};

}  // namespace choir
