#pragma once
// Evaluations during a run: the loss on validation data, whether it is the lowest so far, and
// samples of the model's output.
#include <optional>
#include <vector>

#include "choir/run/training_data.hpp"
#include "src/run/stored_model.hpp"
#include "src/train/loop/run_directory.hpp"

namespace choir {

class Evaluation {
 public:
  /// All arguments must outlive this.
  Evaluation(const Deck& deck, TrainingData& data, ModelInstance& instance,
             const RunDirectory& directory, Logger& log)
      : deck_(deck), data_(data), instance_(instance), directory_(directory), log_(log) {}

  /// Forgets the measurements of the previous step. Local.
  void begin_step();
  /// Adds the result of a finished step; the mean loss of these steps is reported with the next
  /// validation loss. Local.
  void add(const StepResult& result);
  /// True if there is an evaluation after this step: at the deck's interval and after the last
  /// step.
  bool due(std::int64_t step) const;
  /// Measures the validation loss if there is validation data. Collective over the mesh.
  void measure(Progress& progress);
  /// Writes a sample to the log and to the run directory. Collective over the mesh.
  void sample(std::int64_t step);

  /// Measurements of the current step.
  const std::optional<double>& val_loss() const { return val_loss_; }
  const std::optional<double>& train_loss() const { return train_loss_; }
  const std::vector<Validation>& validations() const { return validations_; }
  /// True if the validation loss of this step is the lowest so far and the deck keeps the best
  /// checkpoint.
  bool best() const { return best_; }
  /// The last measured validation loss; 0 before the first.
  double last_val_loss() const { return last_val_loss_; }
  double seconds() const { return seconds_; }
  double slowest() const { return slowest_; }

 private:
  const Deck& deck_;
  TrainingData& data_;
  ModelInstance& instance_;
  const RunDirectory& directory_;
  Logger& log_;
  std::optional<double> train_loss_, val_loss_;
  std::vector<Validation> validations_;
  bool best_ = false;
  double loss_since_ = 0;  // sum over the steps since the last evaluation
  std::int64_t steps_since_ = 0;
  double last_val_loss_ = 0, seconds_ = 0, slowest_ = 0;
};

}  // namespace choir
