// MLPerf's log lines of a run, and the times of its steps.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/report/run_formats.hpp"

namespace choir::report {

std::optional<double> seconds_of(const std::string& time) {
  std::tm local{};
  local.tm_isdst = -1;
  if (strptime(time.c_str(), "%Y-%m-%d %H:%M:%S", &local) == nullptr) return std::nullopt;
  return static_cast<double>(std::mktime(&local));
}

StepTimes::StepTimes(const ReportedRun& run) : dt_(run.curve("dt")) {
  for (const JobStart& start : run.starts)
    if (const auto seconds = seconds_of(start.time)) jobs_.emplace_back(start.step, *seconds);
  if (!jobs_.empty()) now_ = jobs_.front().second;
}

std::optional<double> StepTimes::first() const {
  if (jobs_.empty()) return std::nullopt;
  return jobs_.front().second;
}

double StepTimes::at(double step) {
  for (; job_ < jobs_.size() && static_cast<double>(jobs_[job_].first) < step; ++job_) {
    now_ = std::max(now_, jobs_[job_].second);
    before_ = std::max(before_, static_cast<double>(jobs_[job_].first));
  }
  while (line_ < dt_.x.size() && dt_.x[line_] < step) ++line_;
  if (line_ < dt_.x.size() && dt_.x[line_] == step && std::isfinite(dt_.y[line_]))
    now_ += dt_.y[line_] * (step - before_);
  before_ = step;
  return now_;
}

namespace {

using nlohmann::ordered_json;

class Lines {
 public:
  explicit Lines(const std::map<std::string, std::string>& values) : values_(values) {}

  /// A value of the run; one of the given values replaces it.
  void value(double seconds, const std::string& key, const ordered_json& own) {
    const auto given = values_.find(key);
    if (given != values_.end()) {
      const nlohmann::json number = document_of(given->second);
      event(seconds, "POINT_IN_TIME", key,
            number.is_number() ? ordered_json(number) : ordered_json(given->second));
      values_.erase(given);
      return;
    }
    event(seconds, "POINT_IN_TIME", key, own);
  }
  /// The given values that value() has not asked for.
  void rest(double seconds) {
    while (!values_.empty()) value(seconds, std::string(values_.begin()->first), nullptr);
  }
  void event(double seconds, const char* type, const std::string& key, const ordered_json& value,
             ordered_json metadata = ordered_json::object()) {
    // The checkers want the place of the call; the lines are made from the file of metrics.
    metadata["file"] = "metrics.jsonl";
    metadata["lineno"] = ++count_;
    text_ += ":::MLLOG " +
             dumped(ordered_json{{"namespace", ""},
                                 {"time_ms", std::llround(1e3 * seconds)},
                                 {"event_type", type},
                                 {"key", key},
                                 {"value", value},
                                 {"metadata", std::move(metadata)}}) +
             "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  std::map<std::string, std::string> values_;
  std::string text_;
  std::int64_t count_ = 0;
};

/// Sequences, or utterances of speech, of a step: the mean over the lines of metrics.
double samples_of_step(const ReportedRun& run) {
  const Curve &rate = run.curve("sps"), &dt = run.curve("dt");
  double samples = 0, lines = 0;
  for (std::size_t i = 0; i < std::min(rate.y.size(), dt.y.size()); ++i)
    if (std::isfinite(rate.y[i] * dt.y[i])) samples += rate.y[i] * dt.y[i], lines += 1;
  return lines > 0 ? samples / lines : 0;
}

std::string text_of_deck(const ReportedRun& run, const std::string& key) {
  const nlohmann::json value = document_of(run.deck_value(key));
  return value.is_string() ? value.get<std::string>() : run.deck_value(key);
}

ordered_json number_of_deck(const ReportedRun& run, const std::string& key) {
  const nlohmann::json value = document_of(run.deck_value(key));
  return value.is_number() ? ordered_json(value) : ordered_json(0);
}

/// Micro-batches of a step on each rank: train.grad_accum as it was derived, or the
/// train.micro_batches of families whose samples have lengths of their own.
std::int64_t accumulated_of(const ReportedRun& run) {
  return std::max<std::int64_t>(
      {1, number_of_deck(run, "train.grad_accum"), number_of_deck(run, "train.micro_batches")});
}

/// MLPerf's name of a precision of the deck.
const char* precision_name(const std::string& precision) {
  if (precision.starts_with("bf16")) return "bfloat16";
  if (precision.starts_with("fp16")) return "fp16";
  if (precision.starts_with("fp64")) return "fp64";
  return precision.starts_with("tf32") ? "tf32" : "fp32";
}

std::string platform_of(const ReportedRun& run) {
  int nodes = 0;
  for (const RankPlace& rank : run.start.ranks) nodes = std::max(nodes, rank.node + 1);
  return fmt::format("{} ranks on {} nodes, {}", run.start.ranks.size(), nodes, run.start.device);
}

/// The benchmark of the open division that is nearest to a language model.
const char* benchmark_of(const ReportedRun& run) {
  return text_of_deck(run, "model.lora.rank") == "0" ? "llama31_8b" : "llama2_70b_lora";
}

void submission(Lines& lines, double at, const ReportedRun& run) {
  lines.value(at, "submission_benchmark", benchmark_of(run));
  lines.value(at, "submission_org", "none");
  lines.value(at, "submission_division", "open");
  lines.value(at, "submission_status", "research");
  lines.value(at, "submission_platform", platform_of(run));
}

void hyperparameters(Lines& lines, double at, const ReportedRun& run, double samples) {
  const auto number = [&](const char* key, const char* of) {
    lines.value(at, key, number_of_deck(run, of));
  };
  number("seed", "run.seed");
  lines.value(at, "global_batch_size", std::llround(samples));
  number("max_sequence_length", "model.block_size");
  number("max_steps", "train.max_steps");
  lines.value(at, "train_samples", std::llround(samples * run.steps_done()));
  lines.value(at, "opt_name", text_of_deck(run, "optimizer.name"));
  number("opt_base_learning_rate", "optimizer.learning_rate");
  number("opt_end_learning_rate", "optimizer.min_lr");
  number("opt_learning_rate_warmup_steps", "optimizer.warmup_steps");
  number("opt_learning_rate_decay_steps", "optimizer.decay_steps");
  lines.value(at, "opt_learning_rate_decay_schedule",
              text_of_deck(run, "optimizer.schedule") + " with linear warmup");
  number("opt_adamw_beta_1", "optimizer.beta1");
  number("opt_adamw_beta_2", "optimizer.beta2");
  number("opt_adamw_epsilon", "optimizer.epsilon");
  number("opt_adamw_weight_decay", "optimizer.weight_decay");
  number("opt_gradient_clip_norm", "optimizer.grad_clip");
  lines.value(at, "gradient_accumulation_steps", accumulated_of(run));
  lines.value(at, "micro_batch_size",
              std::max<std::int64_t>(1, number_of_deck(run, "train.micro_batch_size")));
  lines.value(at, "tensor_parallelism", run.start.tp);
  lines.value(at, "pipeline_parallelism", run.start.pp);
  lines.value(at, "context_parallelism", run.start.cp);
  lines.value(at, "expert_parallelism", 1);
  const char* precision = precision_name(text_of_deck(run, "train.precision"));
  for (const char* where : {"linear", "attn", "comm"})
    lines.value(at, fmt::format("lowest_numerical_precision_in_{}", where), precision);
  lines.value(at, "config_filename", run.deck_files.empty() ? "deck.json" : run.deck_files.back());
}

/// Targets or utterances of the validation data, as the last `choir eval` counted them. The
/// record of the training itself does not have this number.
std::optional<std::int64_t> validation_samples(const ReportedRun& run) {
  for (const EvaluationRecord& record : run.evaluations)
    for (const auto& [name, count] : record.conditions)
      if (record.kind == "validation" && name == "targets") return count;
  return std::nullopt;
}

}  // namespace

std::string mllog_lines(const ReportedRun& run, const std::map<std::string, std::string>& values) {
  const Curve& loss = run.curve("val_loss");
  if (run.empty() || loss.x.empty())
    throw DataError(
        fmt::format("'{}' has no {}, and MLPerf's lines need both steps and evaluations", run.path,
                    run.empty() ? "step" : "validation loss"),
        "give the run validation data (data.val) and eval.interval, and train it again");
  const double samples = samples_of_step(run);
  StepTimes times(run);
  const double began = times.first().value_or(0);
  Lines lines(values);
  lines.event(began, "POINT_IN_TIME", "cache_clear", true);
  lines.event(began, "INTERVAL_START", "init_start", nullptr);
  submission(lines, began, run);
  hyperparameters(lines, began, run, samples);
  if (const auto counted = validation_samples(run)) lines.value(began, "eval_samples", *counted);
  lines.value(began, "init_checkpoint_step", 0);
  lines.rest(began);
  lines.event(began, "INTERVAL_END", "init_stop", nullptr);
  lines.event(began, "INTERVAL_START", "run_start", nullptr);
  double at = began, trained = 0;
  for (std::size_t i = 0; i < loss.x.size(); ++i) {
    const auto counted = [&](double step) {
      return ordered_json{{"samples_count", std::llround(samples * step)}, {"epoch_num", i + 1}};
    };
    ordered_json block = counted(trained);
    block["epoch_count"] = 1;
    block["first_epoch_num"] = i + 1;
    lines.event(at, "INTERVAL_START", "block_start", nullptr, block);
    // The time passes line by line: at() must see every step.
    for (const double step : run.curve("dt").x)
      if (step > trained && step <= loss.x[i]) at = times.at(step);
    trained = loss.x[i];
    block["samples_count"] = std::llround(samples * trained);
    lines.event(at, "INTERVAL_END", "block_stop", nullptr, block);
    lines.event(at, "INTERVAL_START", "eval_start", nullptr, counted(trained));
    lines.event(at, "POINT_IN_TIME", "eval_accuracy",
                std::isfinite(loss.y[i]) ? ordered_json(loss.y[i]) : ordered_json(nullptr),
                counted(trained));
    lines.event(at, "INTERVAL_END", "eval_stop", nullptr, counted(trained));
  }
  if (const auto last = seconds_of(run.last_line)) at = std::max(at, *last);
  const char* status = run.fate == Fate::finished ? "success" : "aborted";
  lines.event(at, "INTERVAL_END", "run_stop", nullptr,
              {{"status", status}, {"samples_count", std::llround(samples * run.steps_done())}});
  return lines.take();
}

std::vector<std::string> mllog_notes(const ReportedRun& run,
                                     const std::map<std::string, std::string>& values) {
  std::vector<std::string> notes;
  if (!values.contains("submission_benchmark"))
    notes.push_back(fmt::format(
        "submission_benchmark={} is an assumption, whatever the size of the model; give the "
        "benchmark with --set submission_benchmark=NAME",
        benchmark_of(run)));
  if (!values.contains("eval_samples") && !validation_samples(run))
    notes.emplace_back(
        "eval_samples, which MLPerf's checker requires, is left out, because the training did not "
        "record how many samples an evaluation has; give the number with --set eval_samples=N, or "
        "record it with `choir eval` of the run");
  return notes;
}

}  // namespace choir::report
