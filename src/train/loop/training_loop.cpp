#include "src/train/loop/training_loop.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>

#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/core/build_info.hpp"
#include "src/core/file.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/store/directory.hpp"

namespace choir {
namespace {

constexpr std::size_t kMaxSpans = 1 << 16;

/// Thrown by all ranks that take part in an evaluation or a sample, to leave it for this request.
struct Left {
  Stop reason;
};

void leave_if(Stop asked) {
  if (asked != Stop::none) throw Left{asked};
}

/// The greatest request of the ranks. Collective.
Stop agreed(Communicator& ranks, Stop mine) {
  return static_cast<Stop>(agree(ranks, {.stop = static_cast<int>(mine)}).stop);
}

}  // namespace

Trace::Trace(std::int64_t first, std::int64_t last) : first_(first), last_(last) {
  if (last > 0) spans_.reserve(kMaxSpans);
}

void Trace::span(const char* name, double start, double end) {
  if (!recording()) return;
  if (spans_.size() == kMaxSpans)
    ++lost_;
  else
    spans_.push_back({name, step_, start, end});
}

void Trace::write(const std::string& path, Communicator& world) {
  world.barrier();
  const double aligned =
      now_seconds();  // the same instant on every rank, up to the duration of a barrier
  double first = 0;   // viewers drop spans before 0
  for (const Span& s : spans_) first = std::min(first, s.start - aligned);
  world.all_reduce(&first, 1, DType::f64, ReduceOp::min);
  std::string text = fmt::format(
      "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{0},\"args\":{{\"name\":\"rank "
      "{0}\"}}}},\n",
      world.rank());
  for (const Span& s : spans_)
    text += fmt::format(
        "{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":0,\"ts\":{:.3f},\"dur\":{:.3f},"
        "\"args\":{{\"step\":{}}}}},\n",
        s.name, world.rank(), (s.start - aligned - first) * 1e6, (s.end - s.start) * 1e6, s.step);
  const std::vector<std::string> texts = gather_texts(world, text);
  together(world, [&] {
    if (world.rank() != 0) return;
    require_regular(path);
    std::ofstream file(path);
    file << "{\"traceEvents\":[\n";
    for (const std::string& one : texts) file << one;
    // JSON does not allow a trailing comma, so the number of lost spans comes last.
    file << fmt::format(
        "{{\"name\":\"lost spans\",\"ph\":\"M\",\"pid\":0,\"args\":{{\"n\":{}}}}}\n]}}\n", lost_);
    if (!file.flush()) throw StorageError("cannot write the trace '" + path + "'");
  });
  written_ = true;
  spans_.clear();
}

// The training loop and its observers.

void Observers::follow(const Engine& engine, const Progress& progress) {
  clock.listen([this, &engine, &progress, first = progress.step](Phase ended, double start,
                                                                 double end, Phase next) {
    trace.span(name_of(ended), start, end);
    watch.span(ended, start, end);
    // A pipeline stage reports more: the action and the micro-batch that it is working on.
    std::string_view doing = engine.doing();
    char text[64];
    if (doing.empty()) doing = print_into(text, "step {}: {}", progress.step + 1, name_of(next));
    watch.step(doing, progress.step - first);
    faults.in_phase(progress.step + 1, name_of(next));
  });
}

void Observers::before_step(Engine& engine, std::int64_t step) {
  faults.before_step(step);
  if (step == trace.first()) engine.instance().device().let_profilers_look(true);
}

void Observers::after_step(Engine& engine, std::int64_t step) {
  if (step == trace.last()) engine.instance().device().let_profilers_look(false);
  faults.flip_weight(step, engine.instance());
  watch.after_step(engine, step);
}

void Observers::write_trace(const RunDirectory& directory, Communicator& world) {
  if (trace.complete()) trace.write(directory.path() + "/profile.json", world);
}

TrainingLoop::TrainingLoop(const Parts& parts) : run_(parts), first_step_(run_.progress.step) {}

ExitCode TrainingLoop::run() {
  if (first_step_ == 0) write_sample();
  run_.run_log.begin_steps();
  if (run_.mesh.rank() == 0) leave_mark(LaunchMark::steps);
  Stop stop = Stop::none;
  while (queued() < run_.deck.train.max_steps && stop == Stop::none) {
    run_.evaluation.begin_step();
    queue_step();
    take_results(settles(queued()) ? 0 : run_.engine.lag());
    run_.checkpointer.poll();
    run_.run_log.say_progress(run_.progress.step, run_.evaluation);
    stop = agreed_stop();
    if (stop != Stop::none) take_results(0);
    if (run_.engine.in_flight() > 0) continue;

    const std::int64_t step = run_.progress.step;
    const bool last = step == run_.deck.train.max_steps;
    const bool settled = settles(step);
    if (settled) run_.run_log.end_steps();
    run_.observers.after_step(run_.engine, step);
    // SIGTERM leaves no time for an evaluation.
    if (leaves_time(stop) && run_.evaluation.due(step)) stop = evaluate(stop);
    const bool measured = run_.evaluation.val_loss().has_value();
    if (measured && stop == Stop::none) stop = agreed_stop();
    if (run_.run_log.due(step) || measured)
      run_.run_log.write_line(step, run_.data, run_.engine, run_.evaluation, run_.observers.watch);
    if (stop == Stop::none && !last && measured) {
      write_sample();
      stop = agreed_stop();
    }
    if (stop == Stop::none && !last && (run_.checkpointer.due(step) || run_.evaluation.best())) {
      run_.observers.watch.save("checkpoint");
      run_.observers.faults.in_phase(step, "save");
      run_.checkpointer.save(meta_json(), run_.evaluation.val_loss(), run_.run_log.mean_step());
    }
    run_.observers.write_trace(run_.directory, run_.mesh.world());
    if (settled) run_.run_log.begin_steps();
  }
  return finish(stop);
}

// True if results, parameters or the state of the run are read after this step.
bool TrainingLoop::settles(std::int64_t step) const {
  return run_.run_log.due(step) || run_.evaluation.due(step) || run_.checkpointer.due(step) ||
         run_.observers.settles(step);
}

void TrainingLoop::queue_step() {
  const std::int64_t step = queued() + 1;
  Observers& observers = run_.observers;
  observers.clock.begin();
  observers.watch.begin_phases();
  if (run_.engine.in_flight() == 0) observers.trace.begin_step(step);
  observers.before_step(run_.engine, step);
  const StepContent content = run_.data.content(step - 1, run_.engine.instance().model());
  StepTargets targets = observers.faults.targets(step, content.targets);
  targets.by_micro_batch = content.micro_batch_targets;
  run_.engine.step(
      step - 1, [this](std::int64_t) { return run_.data.next(); }, targets, observers.clock);
}

void TrainingLoop::take_results(int left) {
  for (bool first = true; run_.engine.in_flight() > left; first = false) {
    if (!first) {
      run_.observers.clock.begin();
      run_.observers.watch.begin_phases();
    }
    take_result();
  }
}

void TrainingLoop::take_result() {
  Progress& progress = run_.progress;
  PhaseClock& clock = run_.observers.clock;
  run_.observers.trace.begin_step(progress.step + 1);
  const StepResult result = run_.engine.finish(clock);
  const StepContent content = run_.data.content(progress.step, run_.engine.instance().model());
  ++progress.step;
  progress.consumed_samples += static_cast<std::int64_t>(content.samples);
  const UpdateState& state = run_.engine.update_state();
  progress.updates = state.updates;
  progress.loss_scale = state.loss_scale;
  progress.good_steps = state.good_steps;
  skip_or_stop(result);
  clock.end();
  run_.observers.watch.end_step();
  run_.run_log.add(result, content, clock);
  run_.evaluation.add(result);
}

void TrainingLoop::skip_or_stop(const StepResult& result) {
  Progress& progress = run_.progress;
  if (result.updated) {
    progress.skipped_in_a_row = 0;
    return;
  }
  if (result.overflow) {
    run_.log.info(
        "step {}: overflow with loss scale {:.0f}: step skipped, the next scale is {:.0f}",
        progress.step, result.loss_scale, progress.loss_scale);
    return;
  }
  ++progress.skipped_in_a_row;
  const TrainSection& train = run_.deck.train;
  const bool skip = train.nan_policy == NanPolicy::skip;
  if (skip && progress.skipped_in_a_row <= train.nan_skip_limit) {
    if (run_.mesh.rank() == 0)
      run_.log.warn(
          "step {}: loss {} and gradient norm {} are not finite: step skipped ({} in a row)",
          progress.step, result.loss, result.grad_norm, progress.skipped_in_a_row);
    return;
  }
  std::vector<std::string> names = run_.engine.non_finite_gradients();
  const std::size_t count = names.size();
  names.resize(std::min<std::size_t>(count, 5));
  NumericError error(
      fmt::format("step {}: the loss is {} and the gradient norm {}; {} tensors have gradients "
                  "that are not "
                  "finite: {}{}",
                  progress.step, result.loss, result.grad_norm, count, join(names, ", "),
                  count > names.size() ? " ..." : ""),
      skip ? fmt::format("{} steps in a row were skipped (train.nan_skip_limit); lower "
                         "optimizer.learning_rate",
                         progress.skipped_in_a_row - 1)
           : "lower optimizer.learning_rate or set train.nan_policy to \"skip\"; a checkpoint that "
             "was saved before is good");
  error.set_agreed_ranks(run_.mesh.world().size());  // norm and loss are the same everywhere
  throw error;
}

Stop TrainingLoop::asked_to_leave(const char* phase, double began, Stop known) {
  constexpr double kShort = 5;  // seconds for which a request that leaves time waits
  run_.observers.watch.evaluates(phase);
  seen_ = std::max(seen_, run_.stop.poll(2 * run_.checkpointer.expected_save()));
  // A time limit that was foreseen has reserved the time of this phase.
  const Stop asked = std::max(seen_, known == Stop::walltime ? Stop::none : known);
  const bool waits = asked == Stop::file || asked == Stop::user;
  const bool leaves = waits ? now_seconds() - began > kShort : asked > Stop::drill;
  return leaves ? asked : Stop::none;
}

Stop TrainingLoop::evaluate(Stop stop) {
  if (!run_.data.has_validation()) return stop;
  run_.observers.watch.evaluation("evaluation");
  run_.observers.faults.in_phase(run_.progress.step, "evaluation");
  const double began = now_seconds();
  const auto between = [&] {
    leave_if(agreed(run_.mesh.world(), asked_to_leave("evaluation", began, stop)));
  };
  with_evaluated_weights([&] {
    try {
      run_.evaluation.measure(run_.progress, between);
    } catch (const Left& left) {
      stop = std::max(stop, left.reason);
      run_.log.info("the evaluation after step {} is left unfinished, because the run stops",
                    run_.progress.step);
    }
  });
  return stop;
}

// A sample is generated by the ranks of one model, or by all ranks if parameters are sharded; only
// these ranks agree between two tokens. The others learn of the request at the end of a step.
void TrainingLoop::write_sample() {
  run_.observers.watch.evaluation("sample");
  const double began = now_seconds();
  std::vector<Axis> generating{Axis::tensor, Axis::pipeline};
  if (run_.engine.instance().storage().sharding().values_sharded())
    generating.insert(generating.end(), {Axis::context, Axis::data});
  const auto between = [&] {
    Stop asked = asked_to_leave("sample", began, Stop::none);
    for (const Axis axis : generating) asked = agreed(run_.mesh.host_along(axis), asked);
    leave_if(asked);
  };
  with_evaluated_weights([&] {
    try {
      run_.evaluation.sample(run_.progress.step, between);
    } catch (const Left&) {
      run_.log.info("the sample after step {} is left unfinished, because the run stops",
                    run_.progress.step);
    }
  });
}

// Before the first update there is no average.
void TrainingLoop::with_evaluated_weights(const std::function<void()>& action) {
  Engine& engine = run_.engine;
  const bool averages = run_.deck.eval.ema && run_.progress.updates >= engine.averages()->first();
  if (averages) engine.exchange_averages();
  action();
  if (averages) engine.exchange_averages();
}

std::string TrainingLoop::meta_json() const {
  return TrainMeta{.deck = resolved_json(run_.deck),
                   .vocabulary = run_.data.vocabulary_json(),
                   .vocab_size = run_.engine.options().model.vocab_size(),
                   .data = run_.data.position(run_.progress.step),
                   .contents = run_.contents,
                   .products = run_.products,
                   .provenance = build_provenance(MpiSession::library_version())}
      .to_json();
}

Stop TrainingLoop::agreed_stop() {
  // Time until the next poll: a step, and perhaps an evaluation with its sample and two saves.
  const double ahead = run_.observers.clock.total() + 2 * run_.checkpointer.expected_save() +
                       run_.evaluation.slowest();
  Stop mine = run_.stop.poll(ahead);
  mine = std::max(mine, seen_);
  if (run_.observers.faults.stop_at(queued())) mine = std::max(mine, Stop::drill);
  const std::exception_ptr lost = why_lost();
  const StepVerdict verdict =
      agree(run_.mesh.world(),
            {.failure = lost ? ExitCode::storage : ExitCode::done, .stop = static_cast<int>(mine)});
  if (verdict.failing_rank >= 0) raise_agreed(run_.mesh.world(), verdict, lost);
  return static_cast<Stop>(verdict.stop);
}

/// Returns the error of a run whose directory another one has taken over; nullptr otherwise. Local.
std::exception_ptr TrainingLoop::why_lost() const {
  if (!run_.directory.lost()) return nullptr;
  try {
    run_.directory.require_owned();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

/// The work that a stop without a save loses, for the user. Local.
std::string TrainingLoop::unsaved() const {
  const std::string& path = run_.checkpointer.last_path();
  const std::int64_t saved = path.empty() ? 0 : step_of(path.substr(path.rfind('/') + 1));
  const std::int64_t lost = run_.progress.step - saved;
  if (lost <= 0) return "nothing has changed since the last checkpoint";
  return fmt::format(
      "not saved, because a save takes longer than the second that may be left: "
      "{} since {} will be computed again",
      counted(lost, "step"),
      saved > 0 ? fmt::format("the checkpoint of step {}", saved) : "the start");
}

ExitCode TrainingLoop::finish(Stop stop) {
  run_.run_log.end_steps();
  const Progress& progress = run_.progress;
  Checkpointer& checkpointer = run_.checkpointer;
  const bool done = progress.step >= run_.deck.train.max_steps;
  const bool trained = progress.step > first_step_;
  // SIGTERM may leave only a second, so save only if saves take less. Somebody who types Ctrl-C
  // waits for the end; where a launcher kills the ranks meanwhile, the last complete checkpoint
  // stays.
  const bool time_left =
      leaves_time(stop) || stop == Stop::interrupt || checkpointer.slowest_save() < 0.5;
  // An interval of 0 disables checkpoints during and at the end of the run, but a stopped run must
  // be able to continue.
  const bool wanted = (run_.deck.checkpoint.on_the_way() || !done) && trained && time_left;
  if (!done && run_.mesh.rank() == 0)
    run_.log.warn("stopping after step {}: {}; {}", progress.step, run_.stop.reason(stop),
                  wanted ? "saving" : unsaved());
  if (done && trained && stop <= Stop::drill) write_sample();
  run_.observers.watch.save("checkpoint");
  checkpointer.drain();
  const bool saved = wanted && checkpointer.save_last(meta_json(), run_.evaluation.val_loss());
  together(run_.mesh.world(), [&] {
    if (const std::exception_ptr lost = why_lost()) std::rethrow_exception(lost);
  });
  // A launcher may kill the ranks before they have written the summary.
  if (saved && !done && run_.mesh.rank() == 0) leave_mark(LaunchMark::saved);
  run_.observers.watch.rest();
  run_.log.plain(run_.run_log.summary(progress, run_.engine, run_.plan.arena_bytes, checkpointer,
                                      run_.evaluation, run_.data, run_.observers.watch.own_time()));
  if (wanted && !saved) {
    if (run_.mesh.rank() == 0)
      run_.log.error("the state after step {} was not saved: exit code {}; {}", progress.step,
                     static_cast<int>(ExitCode::storage),
                     checkpointer.last_path().empty()
                         ? "the same command starts anew"
                         : "the same command continues from " + checkpointer.last_path());
    return ExitCode::storage;
  }
  if (done) return ExitCode::done;
  if (!saved) return ExitCode::other;
  run_.log.plain("run the same command again to continue");
  return ExitCode::resubmit;
}

}  // namespace choir
