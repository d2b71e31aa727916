#include "src/train/loop/evaluation.hpp"

#include <algorithm>

#include "src/core/quantities.hpp"

namespace choir {

void Evaluation::begin_step() {
  best_ = false;
  train_loss_.reset();
  val_loss_.reset();
  validations_.clear();
}

void Evaluation::add(const StepResult& result) {
  if (!result.updated) return;
  loss_since_ += result.loss;
  ++steps_since_;
}

bool Evaluation::due(std::int64_t step) const {
  const std::int64_t interval = deck_.eval.interval;
  return interval > 0 && (step % interval == 0 || step == deck_.train.max_steps);
}

void Evaluation::measure(Progress& progress) {
  if (!data_.has_validation()) return;
  const double start = now_seconds();
  ProgressLine line(log_, "evaluation");
  validations_ = data_.validate(instance_, &line);
  val_loss_ = validations_.front().loss;
  if (steps_since_ > 0) train_loss_ = loss_since_ / static_cast<double>(steps_since_);
  loss_since_ = 0;
  steps_since_ = 0;
  last_val_loss_ = *val_loss_;
  best_ =
      deck_.checkpoint.best && deck_.checkpoint.on_the_way() && *val_loss_ < progress.best_val_loss;
  progress.best_val_loss = std::min(progress.best_val_loss, *val_loss_);
  const double seconds = now_seconds() - start;
  seconds_ += seconds;
  slowest_ = std::max(slowest_, seconds);
}

void Evaluation::sample(std::int64_t step) {
  const double start = now_seconds();
  const std::string text = data_.sample(instance_);
  seconds_ += now_seconds() - start;
  if (text.empty() || instance_.mesh().rank() != 0) return;
  log_.plain(fmt::format("--- sample after {} steps ---\n{}\n---", step, text));
  if (!directory_.write_sample(step, text + "\n"))
    log_.error("cannot write a sample to {}: is the disk full? training goes on",
               directory_.samples());
}

}  // namespace choir
