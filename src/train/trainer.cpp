// Trainer: the loop.
#include "choir/train/trainer.hpp"

#include <algorithm>
#include <cmath>

#include "choir/comm/agreement.hpp"
#include "choir/core/process.hpp"
#include "choir/core/text.hpp"
#include "choir/train/engine/build_info.hpp"

namespace choir {

ExitCode Trainer::run() {
  if (first_step_ == 0) write_sample();
  Stop stop = Stop::none;
  while (queued() < deck_.train.max_steps && stop == Stop::none) {
    best_ = false;
    train_loss_.reset();
    validations_.clear();
    val_loss_.reset();  // kept after the last step: the final checkpoint is stored under it
    queue_step();
    take_results(settles(queued()) ? 0 : engine_->lag());
    checkpointer_->poll();
    say_progress();
    stop = agreed_stop();
    if (stop != Stop::none) take_results(0);
    if (engine_->in_flight() > 0) continue;
    faults_.flip_weight(progress_.step, engine_->instance());
    watch_.after_step(*engine_, progress_.step);
    const bool last = progress_.step == deck_.train.max_steps;
    // After SIGTERM there is no time for it.
    if (leaves_time(stop) && (due(deck_.eval.interval) || (last && deck_.eval.interval > 0)))
      evaluate();
    if (first_line_ || due(deck_.log.interval) || last || val_loss_) log_step();
    if (val_loss_ && !last && stop == Stop::none) write_sample();
    if (stop == Stop::none && !last && (checkpointer_->due(progress_.step) || best_)) save();
    if (trace_.complete()) trace_.write(directory_.path() + "/profile.json", mesh_.world());
  }
  return finish(stop);
}

// After these steps something reads results, parameters or the state of the run.
bool Trainer::settles(std::int64_t step) const {
  return first_line_ || step == deck_.train.max_steps || due(deck_.log.interval, step) ||
         due(deck_.eval.interval, step) || checkpointer_->due(step) || step == trace_.last() ||
         watch_.weights_due(step) || faults_.flips_after(step);
}

void Trainer::queue_step() {
  const std::int64_t step = queued() + 1;
  clock_.begin();
  if (engine_->in_flight() == 0) trace_.begin_step(step);
  faults_.before_step(step);
  const StepContent content = data_->content(step - 1, engine_->instance().model());
  engine_->step(
      step - 1, [&](std::int64_t) { return data_->next(); },
      faults_.valid_tokens(step, content.targets), clock_);
}

void Trainer::take_results(int left) {
  for (bool first = true; engine_->in_flight() > left; first = false) {
    if (!first) clock_.begin();
    take_result();
  }
}

void Trainer::take_result() {
  trace_.begin_step(progress_.step + 1);
  last_ = engine_->finish(clock_);
  const StepContent content = data_->content(progress_.step, engine_->instance().model());
  ++progress_.step;
  progress_.consumed_samples += static_cast<std::int64_t>(content.samples);
  content_since_log_.add(content);
  all_content_.add(content);
  const UpdateState& state = engine_->update_state();
  progress_.updates = state.updates;
  progress_.loss_scale = state.loss_scale;
  progress_.good_steps = state.good_steps;
  skip_or_stop(last_);
  clock_.end();
  watch_.end_step();
  since_log_.add(clock_);
  all_steps_.add(clock_);
  if (last_.updated) loss_since_evaluation_ += last_.loss, ++steps_since_evaluation_;
}

void Trainer::skip_or_stop(const StepResult& result) {
  if (result.updated) {
    progress_.skipped_in_a_row = 0;
    return;
  }
  if (result.overflow) {
    log_.info("step {}: overflow with loss scale {:.0f}: step skipped, the next scale is {:.0f}",
              progress_.step, result.loss_scale, progress_.loss_scale);
    return;
  }
  ++progress_.skipped_in_a_row;
  const bool skip = deck_.train.nan_policy == "skip";
  if (skip && progress_.skipped_in_a_row <= deck_.train.nan_skip_limit) {
    if (mesh_.rank() == 0)
      log_.warn("step {}: loss {} and gradient norm {} are not finite: step skipped ({} in a row)",
                progress_.step, result.loss, result.grad_norm, progress_.skipped_in_a_row);
    return;
  }
  std::vector<std::string> names = engine_->non_finite_gradients();
  const std::size_t count = names.size();
  names.resize(std::min<std::size_t>(count, 5));
  NumericError error(
      fmt::format("step {}: the loss is {} and the gradient norm {}; {} tensors have gradients "
                  "that are not "
                  "finite: {}{}",
                  progress_.step, result.loss, result.grad_norm, count, join(names, ", "),
                  count > names.size() ? " ..." : ""),
      skip ? fmt::format("{} steps in a row were skipped (train.nan_skip_limit); lower "
                         "optimizer.learning_rate",
                         progress_.skipped_in_a_row - 1)
           : "lower optimizer.learning_rate or set train.nan_policy to \"skip\"; the last "
             "checkpoint is good");
  error.set_agreed_ranks(mesh_.world().size());  // norm and loss are the same number everywhere
  throw error;
}

Stop Trainer::agreed_stop() {
  // Until the next poll: a step, and perhaps an evaluation with its sample and two saves.
  const double ahead = clock_.total() + 2 * checkpointer_->expected_save() + slowest_evaluation_;
  Stop mine = stop_.poll(ahead);
  if (faults_.stop_at(queued())) mine = std::max(mine, Stop::drill);
  return static_cast<Stop>(agree(mesh_.world(), {.stop = static_cast<int>(mine)}).stop);
}

void Trainer::log_step() {
  if (first_line_ && !deck_.data.hints.empty())
    for (const auto& [key, value] : data_->hints()) log_.info("data hint {} = {}", key, value);
  first_line_ = false;
  const auto steps = static_cast<double>(since_log_.steps);
  const StepContent& sum = content_since_log_;
  StepMetrics m{.step = progress_.step,
                .result = last_,
                .dt = since_log_.mean(),
                .forward = since_log_.mean(Phase::forward),
                .backward = since_log_.mean(Phase::backward),
                .data = since_log_.mean(Phase::data),
                .comm = since_log_.mean(Phase::comm),
                .optimizer = since_log_.mean(Phase::optimizer),
                .other = since_log_.mean(Phase::other),
                .sequences = sum.samples / steps,
                .tokens = sum.targets / steps,
                .audio_seconds = sum.audio_seconds / steps,
                .mfu = 0,
                .memory = resident_bytes(),
                .allocated = static_cast<std::int64_t>(engine_->memory().total()),
                .train_loss = train_loss_,
                .val_loss = val_loss_,
                .validations = validations_,
                .scaled = deck_.train.precision == "fp16-mixed"};
  m.mfu = sum.flops / steps / m.dt / peak_flops_;
  since_log_ = {};
  content_since_log_ = {};
  for (const std::string& line : data_->take_warnings()) log_.warn("data: {}", line);
  watch_.report_ranks(mesh_, progress_.step, log_, metrics_file_);
  if (mesh_.rank() != 0) return;
  log_.info("{}", format_line(m, mesh_.world().size()));
  if (!metrics_file_.write(to_json(m, mesh_.world().size())))
    log_.error("cannot write {}: is the disk full? training goes on", directory_.metrics());
  if (!tensorboard_.write(m))
    log_.error("cannot write {}: is the disk full? training goes on", tensorboard_.path());
}

void Trainer::say_progress() {
  if (!progress_line_.due()) return;
  const double seconds = since_log_.total();
  progress_line_.at(progress_.step, deck_.train.max_steps, first_step_,
                    fmt::format("   step {} of {}   loss {:.4f}   {:.0f} tokens/s", progress_.step,
                                deck_.train.max_steps, last_.loss,
                                seconds > 0 ? content_since_log_.targets / seconds : 0.0));
}

void Trainer::evaluate() {
  if (!data_->has_validation()) return;
  const double start = now_seconds();
  watch_.evaluation("evaluation");
  faults_.in_phase(progress_.step, "evaluation");
  ProgressLine progress(log_, "evaluation");
  validations_ = data_->validate(engine_->instance(), &progress);
  val_loss_ = validations_.front().loss;
  if (steps_since_evaluation_ > 0)
    train_loss_ = loss_since_evaluation_ / static_cast<double>(steps_since_evaluation_);
  loss_since_evaluation_ = 0;
  steps_since_evaluation_ = 0;
  last_val_loss_ = *val_loss_;
  evaluation_seconds_ += now_seconds() - start;
  slowest_evaluation_ = std::max(slowest_evaluation_, now_seconds() - start);
  best_ = deck_.checkpoint.best && deck_.checkpoint.on_the_way() &&
          *val_loss_ < progress_.best_val_loss;
  progress_.best_val_loss = std::min(progress_.best_val_loss, *val_loss_);
}

void Trainer::write_sample() {
  const double start = now_seconds();
  watch_.evaluation("sample");
  const std::string text = data_->sample(engine_->instance());
  evaluation_seconds_ += now_seconds() - start;
  if (text.empty() || mesh_.rank() != 0) return;
  log_.plain(fmt::format("--- sample after {} steps ---\n{}\n---", progress_.step, text));
  if (!directory_.write_sample(progress_.step, text + "\n"))
    log_.error("cannot write a sample to {}: is the disk full? training goes on",
               directory_.samples());
}

std::string Trainer::meta_json() const {
  return TrainMeta{.deck = resolved_json(deck_),
                   .vocabulary = data_->vocabulary_json(),
                   .vocab_size = engine_->options().model.vocab_size(),
                   .data = data_->position(progress_.step),
                   .provenance = build_provenance()}
      .to_json();
}

void Trainer::save() {
  watch_.save("checkpoint");
  faults_.in_phase(progress_.step, "save");
  checkpointer_->save(meta_json(), val_loss_, all_steps_.mean());
}

ExitCode Trainer::finish(Stop stop) {
  const bool done = progress_.step >= deck_.train.max_steps;
  if (!done && mesh_.rank() == 0)
    log_.warn("stopping after step {}: {}", progress_.step, stop_.reason(stop));
  // After SIGTERM there may be a second left: save only what is known to take less.
  const bool time_left = leaves_time(stop) ||
                         (checkpointer_->slowest_save() > 0 && checkpointer_->slowest_save() < 0.5);
  // An interval of 0 means no checkpoints on the way and at the end; a stop is asked to be
  // continued.
  const bool wanted =
      (deck_.checkpoint.on_the_way() || !done) && progress_.step > first_step_ && time_left;
  if (done && progress_.step > first_step_) write_sample();
  watch_.save("checkpoint");
  checkpointer_->drain();
  const bool saved = wanted && checkpointer_->save_last(meta_json(), val_loss_);
  watch_.rest();
  log_.plain(summary());
  if (wanted && !saved) {
    if (mesh_.rank() == 0)
      log_.error("the state after step {} was not saved: exit code {}; {}", progress_.step,
                 static_cast<int>(ExitCode::storage),
                 checkpointer_->last_path().empty()
                     ? "the same command starts anew"
                     : "the same command continues from " + checkpointer_->last_path());
    return ExitCode::storage;
  }
  if (done) return ExitCode::done;
  if (!saved) return ExitCode::other;
  log_.plain("run the same command again to continue");
  return ExitCode::resubmit;
}

}  // namespace choir
