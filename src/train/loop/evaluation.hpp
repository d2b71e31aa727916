#pragma once
// What a run finds out about its model on the way: the loss on validation data, whether it is the
// lowest so far, and samples of what the model makes.
#include <optional>
#include <vector>

#include "choir/train/loop/run_directory.hpp"
#include "choir/train/step/train_checkpoint.hpp"
#include "choir/train/step/training_data.hpp"

namespace choir {

class Evaluation {
 public:
  /// Everything referred to must outlive this.
  Evaluation(const Deck& deck, TrainingData& data, ModelInstance& instance,
             const RunDirectory& directory, Logger& log)
      : deck_(deck), data_(data), instance_(instance), directory_(directory), log_(log) {}

  /// Local. What was measured belongs to the step before.
  void begin_step();
  /// Local. A step is done; the mean of their losses stands beside the next validation loss.
  void add(const StepResult& result);
  /// Whether there is one after this step: at the deck's interval, and after the last.
  bool due(std::int64_t step) const;
  /// Collective over the mesh: the validation loss, where there are validation data.
  void measure(Progress& progress);
  /// Collective over the mesh: a sample into the log and the run's directory.
  void sample(std::int64_t step);

  /// Measured at the current step.
  const std::optional<double>& val_loss() const { return val_loss_; }
  const std::optional<double>& train_loss() const { return train_loss_; }
  const std::vector<Validation>& validations() const { return validations_; }
  /// The validation loss of this step is the lowest so far, and the deck wants it kept.
  bool best() const { return best_; }
  /// The last that was measured; 0 before that.
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
  double loss_since_ = 0;  // of the steps since the last evaluation
  std::int64_t steps_since_ = 0;
  double last_val_loss_ = 0, seconds_ = 0, slowest_ = 0;
};

}  // namespace choir
