#include "src/train/loop/run_log.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "src/comm/agreement.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/stats.hpp"
#include "src/run/evaluation_record.hpp"
#include "src/train/loop/startup_report.hpp"

namespace choir {

namespace {

constexpr double kFirstProgress = 3;  // seconds of an evaluation or a sample without a line

}  // namespace

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

std::int64_t Evaluation::due_after(std::int64_t step) const {
  const std::int64_t interval = deck_.eval.interval, last = deck_.train.max_steps;
  if (interval <= 0 || step >= last || !data_.has_validation()) return 0;
  return (last - 1) / interval - step / interval + 1;
}

void Evaluation::keep_worst(std::int64_t step, const std::vector<WorstSample>& samples) {
  if (instance_.mesh().rank() != 0) return;
  const std::string problem =
      choir::keep_worst(directory_.path(), {.step = step, .source = {}, .samples = samples});
  if (!problem.empty())
    log_.error("the samples with the most errors are not kept: {}; training goes on", problem);
}

void Evaluation::measure(Progress& progress, const std::function<void()>& between) {
  if (!data_.has_validation()) return;
  const double start = now_seconds();
  ProgressLine line(log_, "evaluation", kFirstProgress);
  line.listen(between);
  EvaluationResult result = data_.validate(instance_, &line);
  validations_ = std::move(result.sets);
  examples_ = std::move(result.examples);
  keep_worst(progress.step, result.worst);
  for (const std::string& text : lines_of(validations_)) log_.info("validation {}", text);
  if (const std::string drawn = data_.drawn(); !drawn.empty()) log_.info("drawn so far: {}", drawn);
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
  measured_ += seconds;
  ++measurements_;
  slowest_ = std::max(slowest_, seconds);
}

void Evaluation::sample(std::int64_t step, const std::function<void()>& between) {
  const double start = now_seconds();
  ProgressLine line(log_, "sample", kFirstProgress);
  line.listen(between);
  std::string text = data_.sample(instance_, &line);
  if (text.empty()) text = examples_;
  seconds_ += now_seconds() - start;
  if (measurements_ > 0) measured_ += now_seconds() - start;
  if (text.empty() || instance_.mesh().rank() != 0) return;
  log_.plain(fmt::format("--- sample after {} steps ---\n{}\n---", step, text));
  if (!directory_.write_sample(step, text + "\n"))
    log_.error("cannot write a sample to {}: is the disk full? training goes on",
               directory_.samples());
}

namespace {

constexpr double kProgressInterval = 60;  // seconds between two progress lines in a log
constexpr double kProgressRenewal = 0.2;  // seconds between two updates on a terminal
constexpr double kSlowLine = 1.2;         // times the fastest line so far

std::string loss_text(double loss) {
  return std::isfinite(loss) && loss > 0 ? fmt::format("{:.4f}", loss) : "not measured";
}

std::vector<std::pair<std::string, double>> terms_of(const Engine& engine,
                                                     const StepResult& result) {
  return means_by_name(engine.instance().loss_terms(), result.terms, result.targets);
}

/// "forward 31.9 %, backward 62.0 %, ..."
std::string shares(const PhaseTotals& phases) {
  std::string text;
  if (phases.steps == 0) return "no steps";
  for (int i = 0; i < kPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    text += fmt::format("{}{} {:.1f} %", i ? ", " : "", name_of(phase),
                        100 * phases.of(phase) / phases.total());
  }
  return text;
}

/// Gathers the numbers of each rank on rank 0, which prints; empty on the others. Collective.
template <std::size_t kNumbers>
std::vector<std::array<double, kNumbers>> gather_numbers(Communicator& world,
                                                         const std::array<double, kNumbers>& mine) {
  const auto ranks = static_cast<std::size_t>(world.rank() == 0 ? world.size() : 0);
  std::vector<std::array<double, kNumbers>> all(ranks);
  std::vector<std::int64_t> sizes(ranks, sizeof mine), offsets(ranks);
  for (std::size_t r = 0; r < ranks; ++r) offsets[r] = static_cast<std::int64_t>(r * sizeof mine);
  world.gather(mine.data(), sizeof mine, all.data(), sizes.data(), offsets.data(), 0);
  return all;
}

std::vector<CoreShortage> gather_shortages(Communicator& world, const CoreShortage& own) {
  std::vector<CoreShortage> all;
  for (const auto& [seconds, waiting, stolen, switches] :
       gather_numbers<4>(world, {own.seconds, own.waiting, own.stolen, own.switches}))
    all.push_back({.seconds = seconds, .waiting = waiting, .stolen = stolen, .switches = switches});
  return all;
}

}  // namespace

void TimeLeft::add_step(double seconds) {
  if (timed_ >= 0) recent_[static_cast<std::size_t>(timed_ % kRecent)] = seconds;
  ++timed_;
}

double TimeLeft::of_step() const {
  if (timed_ < kEnough) return 0;
  std::array<double, kRecent> sorted = recent_;  // steps allocate no memory
  const auto end = sorted.begin() + std::min(timed_, kRecent);
  const auto middle = sorted.begin() + std::min(timed_, kRecent) / 2;
  std::nth_element(sorted.begin(), middle, end);
  return *middle;
}

double TimeLeft::of(std::int64_t steps, std::int64_t evaluations, double evaluation) const {
  const double step = of_step();
  if (step == 0) return 0;
  return step * static_cast<double>(steps) + evaluation * static_cast<double>(evaluations);
}

RunLog::RunLog(const Deck& deck, Mesh& mesh, const RunDirectory& directory, Logger& log,
               double started)
    : deck_(deck), mesh_(mesh), directory_(directory), log_(log), started_(started) {}

void RunLog::open_files(std::int64_t step) {
  metrics_file_ = MetricsFile(directory_.metrics(), step);
  if (const std::int64_t logged = metrics_file_.last_dropped();
      logged > step && deck_.checkpoint.resume != "none") {
    if (step > 0)
      log_.info(
          "the run continues from step {}: the steps up to {}, which were logged, are computed "
          "again",
          step, logged);
    else
      log_.info(
          "no checkpoint in {} yet: the run starts again at step 1, and the steps that were "
          "logged, up to step {}, are computed again",
          directory_.path(), logged);
  }
  if (deck_.log.tensorboard) tensorboard_ = TensorboardFile(directory_.tensorboard(), step + 1);
  if (!deck_.log.prometheus.empty())
    prometheus_ = PrometheusFile(deck_.log.prometheus, deck_.run.dir);
}

void RunLog::record(const std::string& json) {
  if (metrics_file_.write(json)) return;
  ++lost_lines_;
  log_.error("cannot write {}: is the disk full? training goes on", directory_.metrics());
}

void RunLog::start_training(std::int64_t step, const Device& device) {
  first_step_ = step;
  ready_ = now_seconds();
  log_.info("ready after {}", format_duration(ready_ - started_));
  progress_said_ = ready_;
  hosts_ = gather_texts(mesh_.world(), host_name());
  hosts_.resize(static_cast<std::size_t>(mesh_.world().size()));
  crowded_ = gather_texts(mesh_.world(), shared_cores_note(mesh_.node()));
  cores_.emplace(computing_threads());
  cores_since_line_ = cores_;
  energy_.emplace(mesh_, device);
  // Most machines without a GPU have no counter that a user may read.
  if (energy_->readable() || device.kind() == DeviceKind::cuda || deck_.log.verbose)
    log_.info("energy {}: {}", energy_->readable() ? "is measured" : "is not readable here",
              energy_->text());
}

void RunLog::add(const StepResult& result, const StepContent& content, const PhaseClock& step) {
  last_ = result;
  content_since_line_.add(content);
  all_content_.add(content);
  since_line_.add(step);
  all_steps_.add(step);
  time_left_.add_step(step.total());
  energy_->keep_up();
}

bool RunLog::due(std::int64_t step) const {
  const std::int64_t interval = deck_.log.interval;
  return first_line_ || step == deck_.train.max_steps || (interval > 0 && step % interval == 0);
}

double RunLog::mfu(double flops_per_second) {
  if (measure_again_) {
    double fastest = flops_per_second;
    mesh_.world().all_reduce(&fastest, 1, DType::f64, ReduceOp::max);
    if (fastest > peak_flops_) {
      const double before = std::exchange(peak_flops_, std::max(peak_flops_, measure_again_()));
      measure_again_ = nullptr;
      log_.info(
          "a step was faster than the peak for mfu, {:.3f} TFLOP/s: measured again, {:.3f} TFLOP/s",
          before / 1e12, peak_flops_ / 1e12);
    }
  }
  return flops_per_second / peak_flops_;
}

void RunLog::write_line(std::int64_t step, TrainingData& data, const Engine& engine,
                        const Evaluation& evaluation, RunWatch& watch) {
  if (first_line_ && !deck_.data.hints.empty())
    for (const auto& [key, value] : data.hints()) log_.info("data hint {} = {}", key, value);
  first_line_ = false;
  const auto steps = static_cast<double>(since_line_.steps);
  const StepContent& sum = content_since_line_;
  StepMetrics m{.step = step,
                .result = last_,
                .terms = terms_of(engine, last_),
                .dt = since_line_.mean(),
                .forward = since_line_.mean(Phase::forward),
                .backward = since_line_.mean(Phase::backward),
                .data = since_line_.mean(Phase::data),
                .comm = since_line_.mean(Phase::comm),
                .optimizer = since_line_.mean(Phase::optimizer),
                .other = since_line_.mean(Phase::other),
                .sequences = sum.samples / steps,
                .tokens = sum.targets.first() / steps,
                .audio_seconds = sum.audio_seconds / steps,
                .mfu = mfu(sum.flops / steps / since_line_.mean()),
                .memory = resident_bytes(),
                .allocated = static_cast<std::int64_t>(engine.memory().total()),
                .train_loss = evaluation.train_loss(),
                .val_loss = evaluation.val_loss(),
                .validations = evaluation.validations(),
                .scaled = deck_.train.precision == TrainPrecision::fp16_mixed};
  measure_energy(m, steps);
  since_line_ = {};
  content_since_line_ = {};
  report_cores(m.dt);
  for (const std::string& line : data.take_warnings()) log_.warn("data: {}", line);
  watch.report_ranks(mesh_, step, log_, metrics_file_);
  print_line(m);  // of rank 0, or of all ranks with log.all_ranks
  if (mesh_.rank() != 0) return;
  if (m.dt > 0)
    line_rates_.push_back((deck_.family().words().audio ? m.audio_seconds : m.tokens) / m.dt);
  record(to_json(m, mesh_.world().size()));
  if (!tensorboard_.write(m))
    log_.error("cannot write {}: is the disk full? training goes on", tensorboard_.path());
  if (!prometheus_.write(m))
    log_.error("cannot write {}: is the disk full? training goes on", prometheus_.path());
}

void RunLog::measure_energy(StepMetrics& metrics, double steps) {
  if (!energy_->readable()) return;
  const EnergyUse use = energy_->use();
  if (!energy_->readable()) {
    log_.warn(
        "energy: a counter of a device can no longer be read, so energy is not known from here");
    return;
  }
  metrics.energy = (use.steps - std::exchange(energy_before_line_, use.steps)) / steps;
  metrics.total_energy = use.all;
}

std::string RunLog::energy_text() {
  if (!energy_->readable()) return {};
  const EnergyUse use = energy_->use();
  if (!energy_->readable()) return {};
  const double targets = all_content_.targets.first(),
               steps = static_cast<double>(all_steps_.steps);
  std::string text =
      fmt::format("\n  energy           {} of {}", format_energy(use.all), energy_->text());
  if (steps > 0)
    text += fmt::format(": {} a step, {} a token; steps {:.1f} %", format_energy(use.steps / steps),
                        format_energy(use.steps / std::max(targets, 1.0)),
                        100 * use.steps / std::max(use.all, 1e-30));
  return text;
}

void RunLog::print_line(const StepMetrics& metrics) {
  const std::string line = format_line(metrics, mesh_.world().size());
  if (deck_.log.style == LogStyle::compact) {
    log_.two_forms(line, compact_lines(metrics));
  } else if (log_.on_terminal()) {
    const std::string clock = timestamp().substr(std::string_view("2026-11-29 ").size()) + " ";
    const std::size_t columns = std::max(log_.columns(), clock.size());
    log_.two_forms(line, clock + fitting_line(line, columns - clock.size()));
  } else {
    log_.info("{}", line);
  }
}

void RunLog::report_cores(double dt) {
  const std::vector<CoreShortage> cores =
      gather_shortages(mesh_.world(), cores_since_line_->look());
  if (fastest_ == 0 || dt < fastest_) fastest_ = dt;
  if (dt < kSlowLine * fastest_ || now_seconds() - cores_said_ < kProgressInterval) return;
  // dt and clocks differ between ranks: only the lines above are executed by all of them.
  const std::string busy = busy_cores(cores, hosts_, crowded_);
  if (busy.empty() || mesh_.rank() != 0) return;
  cores_said_ = now_seconds();
  log_.warn("steps take {:.2f} times the {} of the fastest line: {}", dt / fastest_,
            format_duration(fastest_), busy);
}

void RunLog::say_time_left(std::int64_t step, const Evaluation& evaluation) {
  constexpr double kWorthSaying = 10;  // seconds
  if (log_.on_terminal()) return;
  // Said after some steps, and again when the time of an evaluation is known.
  const std::int64_t more = evaluation.due_after(step);
  const bool known = more == 0 || evaluation.mean() > 0;
  if (said_time_left_ && (said_with_evaluations_ || !known)) return;
  if (time_left_.of_step() == 0) return;
  said_time_left_ = true;
  said_with_evaluations_ = known;
  const double left = seconds_left(step, evaluation);
  if (left < kWorthSaying) return;
  std::string text =
      fmt::format("about {}{} left, at {} a step", format_duration(left),
                  more > 0 && !known ? " of steps" : "", format_duration(time_left_.of_step()));
  if (more > 0)
    text += known ? fmt::format(", with {} of {}{}", counted(more, "evaluation"),
                                format_duration(evaluation.mean()), more == 1 ? "" : " each")
                  : fmt::format("; the time of {} is not yet known and comes on top",
                                counted(more, "evaluation"));
  log_.info("{}", text);
}

double RunLog::seconds_left(std::int64_t step, const Evaluation& evaluation) const {
  return time_left_.of(deck_.train.max_steps - step, evaluation.due_after(step), evaluation.mean());
}

void RunLog::say_progress(std::int64_t step, const Evaluation& evaluation) {
  say_time_left(step, evaluation);
  const std::int64_t all = deck_.train.max_steps;
  const double now = now_seconds();
  if (now - progress_said_ < (log_.on_terminal() ? kProgressRenewal : kProgressInterval)) return;
  progress_said_ = now;
  // Evaluations and checkpoints may follow the last step.
  if (step >= all) return log_.status({});
  std::string text = fmt::format("training: {} %", 100 * step / all);
  if (const double left = seconds_left(step, evaluation); left > 0)
    text += fmt::format(", {} left",
                        left < 1 ? std::string("less than a second") : format_duration(left));
  if (!log_.on_terminal()) return log_.info("{}", text);
  const double seconds = since_line_.total();
  const FamilyWords words = deck_.family().words();
  const double amount = words.audio ? content_since_line_.audio_seconds
                                    : static_cast<double>(content_since_line_.targets.first());
  log_.status(text + fmt::format("   step {} of {}   loss {:.4f}   {:.0f} {}", step, all,
                                 last_.loss, seconds > 0 ? amount / seconds : 0.0, words.rate));
}

RunTimes RunLog::times_of_ranks(RankTimes::Own own, double between_steps) {
  Communicator& world = mesh_.world();
  RunTimes times{.phases = all_steps_,
                 .own = {},
                 .outside = {},
                 .deviation = {},
                 .cores = gather_shortages(world, cores_->look()),
                 .hosts = hosts_,
                 .crowded = crowded_,
                 .between_steps = between_steps};
  for (const auto& [all, outside, deviation] :
       gather_numbers<3>(world, {own.all, own.outside, own.deviation})) {
    times.own.push_back(all);
    times.outside.push_back(outside);
    times.deviation.push_back(deviation);
  }
  return times;
}

std::string RunLog::summary(const Progress& progress, Engine& engine, std::size_t planned_arena,
                            const Checkpointer& checkpointer, const Evaluation& evaluation,
                            const TrainingData& data, RankTimes::Own own) {
  const double wall = now_seconds() - started_, start = ready_ - started_;
  const double stepping = all_steps_.total();
  const double between =
      std::max(0.0, wall - start - stepping - evaluation.seconds() - checkpointer.seconds());
  const FamilyWords words = deck_.family().words();
  const double amount = words.audio ? all_content_.audio_seconds : all_content_.targets.first();
  const double median = median_of_lines(line_rates_), mean = stepping > 0 ? amount / stepping : 0;
  const auto mib = [](std::size_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  std::string text = fmt::format(
      "summary:\n"
      "  steps            {} ({} now), {} {} used, {} updates\n"
      "  loss             {}\n",
      progress.step, progress.step - first_step_, progress.consumed_samples, words.samples,
      progress.updates, loss_text(last_.loss));
  for (const auto& [name, value] : terms_of(engine, last_))
    text += fmt::format("  {:<16} {}\n", name, loss_text(value));
  text += fmt::format(
      "  validation loss  {}\n"
      "  best validation  {}\n",
      loss_text(evaluation.last_val_loss()), loss_text(progress.best_val_loss));
  text += fmt::format(
      "  speed            {:.0f} {}, {}; {} of steps\n"
      "  phases           {}\n"
      "  wall time        {}: start {:.1f} %, steps {:.1f} %, evaluation and samples {:.1f} %, "
      "checkpoints {:.1f} %, between steps {:.1f} %\n",
      std::isfinite(median) ? median : mean, words.rate,
      std::isfinite(median) ? kMedianOfLines : "mean of the steps", format_duration(stepping),
      shares(all_steps_), format_duration(wall), 100 * start / wall, 100 * stepping / wall,
      100 * evaluation.seconds() / wall, 100 * checkpointer.seconds() / wall, 100 * between / wall);
  text += fmt::format(
      "  memory           activations: peak {} of {} planned (with work space); the whole process: "
      "{} resident\n"
      "  run directory    {}\n"
      "  checkpoint       {}{}",
      mib(engine.instance().arena().peak()), mib(planned_arena),
      mib(static_cast<std::size_t>(resident_bytes())), directory_.path(),
      checkpointer.last_path().empty() ? "none" : checkpointer.last_path(),
      checkpointer.failures() > 0 ? fmt::format(" ({} failed)", checkpointer.failures()) : "");
  if (lost_lines_ > 0)
    text += fmt::format("\n  metrics          {} of {} could not be written and {} missing",
                        counted(lost_lines_, "line"), directory_.metrics(),
                        lost_lines_ == 1 ? "is" : "are");
  text += energy_text();
  if (const std::string drawn = data.drawn(); !drawn.empty())
    text += "\n  drawn            " + drawn;
  const RunTimes times = times_of_ranks(own, between / wall);
  const std::string said = mesh_.rank() == 0 ? diagnosis(times) : "";
  return said.empty() ? text : text + "\n  diagnosis        " + said;
}

}  // namespace choir
