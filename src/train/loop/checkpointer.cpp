#include "src/train/loop/checkpointer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "choir/core/error.hpp"
#include "choir/nn/layers/linear.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/null_communicator.hpp"
#include "src/core/file.hpp"
#include "src/core/quantities.hpp"
#include "src/run/stored_averages.hpp"
#include "src/store/collectives.hpp"
#include "src/store/write_probe.hpp"
#include "src/train/loop/weight_check.hpp"

namespace choir {
namespace {

constexpr int kKeepAll = std::numeric_limits<int>::max();
constexpr double kProbeBytes =
    32 << 20;                         // per rank: written to measure a disk before the first save
constexpr double kWorthALine = 0.05;  // seconds

/// `kept`: a step that is kept whatever follows; -1: none.
Retention retention_of(const Deck& deck, std::int64_t kept) {
  return {.keep_last = deck.checkpoint.keep > 0 ? deck.checkpoint.keep : kKeepAll,
          .keep_every = deck.checkpoint.keep_every,
          .keep_best = deck.checkpoint.best,
          .keep_step = kept};
}

/// The hook owns the step that it reads: its thread may outlive the run.
FaultHook hook_of(const Faults& faults, const std::shared_ptr<std::int64_t>& saving) {
  const FaultHook hook = faults.in_save(*saving);
  if (!hook) return {};
  return [hook, saving](const char* instant) { hook(instant); };
}

StoreOptions with_progress(StoreOptions options, PhaseProgress progress) {
  options.progress = std::move(progress);
  return options;
}

/// The token of rank 0. A rehearsal finds files under the usual names. Collective.
std::string tag_of(const RunDirectory* directory, Communicator& world) {
  if (directory == nullptr || rehearsal_of(world) != nullptr) return "";
  std::string tag = directory->token();
  share_text(world, tag);
  return tag;
}

/// Throws StorageError for counts that checksums cannot verify, in case somebody forged them.
void require_sound(const Progress& progress, const Checkpoint& found) {
  const std::int64_t step = found.manifest.step;
  if (progress.step == step && progress.updates >= 0 && progress.updates <= step &&
      progress.consumed_samples >= 0 && progress.skipped_in_a_row >= 0 &&
      progress.skipped_in_a_row <= step)
    return;
  throw StorageError(
      fmt::format("{} is inconsistent: its manifest is of step {}, its state of step {} with {} "
                  "updates and {} samples",
                  found.path, step, progress.step, progress.updates, progress.consumed_samples),
      "move it away; the run then continues from the previous one");
}

}  // namespace

Checkpointer::Checkpointer(const Deck& deck, const std::string& folder, Engine& engine,
                           Progress& progress, const Faults& faults, Logger& log, Options options)
    : deck_(deck),
      engine_(engine),
      progress_(progress),
      log_(log),
      options_(std::move(options)),
      tag_(tag_of(options_.directory, engine.mesh().world())),
      store_(folder, engine.mesh().world(), with_progress(store_options(faults), progress_lines())),
      schedule_(deck.checkpoint, engine.mesh().nodes(), engine.options().schedule.tail_begin(),
                deck.train.max_steps) {
  begin_on({});
  if (options_.async)
    saver_ =
        std::make_unique<BackgroundSaver>(folder, engine.mesh().world(), engine.instance().device(),
                                          options_.snapshot_bytes, store_options(faults));
}

StoreOptions Checkpointer::store_options(const Faults& faults) const {
  StoreOptions options{.retention = retention_of(deck_, engine_.options().schedule.tail_begin()),
                       .fault = hook_of(faults, saving_)};
  options.tag = tag_;
  if (options_.directory != nullptr) options.require_owned = options_.directory->ownership();
  return options;
}

PhaseProgress Checkpointer::progress_lines() {
  return [this](const char* phase, std::int64_t done, std::int64_t total) {
    if (done == 0 || !progress_line_ || phase != phase_) {
      phase_ = phase;
      progress_line_.emplace(log_, std::string("checkpoint, ") + phase);
    }
    progress_line_->at(done, total);
  };
}

Checkpointer::~Checkpointer() {
  if (!saver_ || !saver_->pending() || !saver_->settle()) return;
  try {
    report(saver_->wait());
  } catch (const std::exception& error) {
    log_.error("the checkpoint in flight: {}", plain_cause(error));
  }
}

void Checkpointer::begin_on(const std::vector<BaseFile>& bases) {
  bases_.clear();
  const ParameterSet& parameters = engine_.instance().parameters();
  if (!deck_.checkpoint.store_base && has_adapters(parameters)) {
    std::set<std::string> frozen;
    for (const Parameter* p : parameters.all())
      if (!p->trainable) frozen.insert("parameters/" + p->name);
    bases_ = bases;
    for (BaseFile& base : bases_)
      std::erase_if(base.tensors,
                    [&](const TensorRecord& record) { return !frozen.contains(record.name); });
    std::erase_if(bases_, [](const BaseFile& base) { return base.tensors.empty(); });
  }
  bytes_ = 0;
  for (const StoredTensor& tensor : tensors_of_save())
    bytes_ +=
        static_cast<double>(tensor.shape.count()) * static_cast<double>(size_of(tensor.dtype));
  expected_ = expected_first_save(bytes_, engine_.mesh().nodes(), 0);
  for (const BaseFile& base : bases_) {
    std::int64_t left_out = 0;
    for (const TensorRecord& record : base.tensors) left_out += record.bytes();
    log_.info(
        "checkpoints leave out {} of frozen weights, which stay in {}; "
        "checkpoint.store_base=true stores them too",
        format_bytes(static_cast<double>(left_out)), base.path);
  }
}

std::vector<StoredTensor> Checkpointer::tensors_of_save() {
  std::vector<StoredTensor> tensors = tensors_to_save(engine_, progress_);
  std::set<std::string_view> elsewhere;
  for (const BaseFile& base : bases_)
    for (const TensorRecord& record : base.tensors) elsewhere.insert(record.name);
  std::erase_if(tensors,
                [&](const StoredTensor& tensor) { return elsewhere.contains(tensor.name); });
  return tensors;
}

void Checkpointer::restore(const Checkpoint& found, const TrainMeta& meta) {
  progress_.data = meta.data;
  const double start = now_seconds();
  std::vector<StoredTensor> tensors = tensors_to_load(engine_, progress_);
  Mesh& mesh = engine_.mesh();
  const bool averaged = has_averages(found), averages = engine_.averages() != nullptr;
  if (!averaged) remove_averages(tensors);
  const Checkpoint wanted = averages ? found : without_averages(found);
  // If one rank of a node has read a part, the others find it in memory; ranks of many nodes would
  // all ask for all of it, so they share the reading.
  if (engine_.instance().storage().sharding().stage() == 0 && mesh.nodes() > 1)
    store_.load_shared(wanted, tensors, mesh.host_replicas());
  else
    store_.load(wanted, tensors);
  together(mesh.world(), [&] { require_sound(progress_, found); });
  engine_.instance().publish();
  engine_.resume(progress_.update_state());
  if (averages && !averaged) engine_.averages()->begin_after(progress_.updates);
  if (averages && !averaged)
    log_.info("train.ema: the average begins here, because {} has none", found.path);
  if (!averages && averaged)
    log_.info("train.ema is 0: the averaged weights of {} are dropped", found.path);
  last_path_ = found.path;
  begin_on(found.manifest.bases);
  const Branch& parent = found.manifest.branch;
  const bool stays =
      deck_.checkpoint.resume == "auto" && !found.leaves_newer() && !parent.id.empty();
  if (stays)
    branch_ = parent;
  else
    begin_branch(&found.manifest);
  log_.info("resumed from {} (step {}, {})", found.path, progress_.step,
            format_duration(now_seconds() - start));
  if (!stays && !parent.id.empty())
    log_.info(
        "a new branch of checkpoints ({}) begins after step {}; later ones of the branch before it "
        "({}) are abandoned",
        branch_.id, progress_.step, parent.id);
}

/// Collective.
void Checkpointer::begin_branch(const Manifest* parent) {
  Communicator& world = engine_.mesh().world();
  together(world, [&] {
    if (world.rank() == 0) branch_ = choir::begin_branch(parent, store_.directory());
  });
  share_text(world, branch_.id);
}

std::int64_t Checkpointer::newest_step() const {
  const std::vector<std::int64_t> steps = store_.list();
  return steps.empty() ? 0 : steps.front();
}

void Checkpointer::begin() {
  for (const StoredTensor& tensor : tensors_of_save())
    if (tensor.consume)
      throw DeckError(
          fmt::format(
              "train.frozen_precision = \"{}\" keeps the original of a quantised weight only "
              "in the base, but checkpoint.init_from has no {}",
              name_of(deck_.train.frozen_precision), tensor.name),
          "take all frozen weights from checkpoint.init_from, without checkpoint.init_skip, or set "
          "train.frozen_precision to \"bf16\"");
  if (branch_.id.empty()) begin_branch(nullptr);
  const double walltime = deck_.run.walltime;
  if (walltime > 0) {
    Communicator& world = engine_.mesh().world();
    const double share = std::min(kProbeBytes, std::ceil(bytes_ / world.size()));
    const double rate =
        probe_write_rate(world, store_.directory().path(), static_cast<std::int64_t>(share));
    expected_ = expected_first_save(bytes_, engine_.mesh().nodes(), rate);
    log_.info("run.walltime: the first save, of {}, is expected to take {} (measured: {}/s)",
              format_bytes(bytes_), format_duration(expected_), format_bytes(rate));
    const std::string problem = short_walltime(expected_, deck_.run.walltime_margin, walltime);
    if (!problem.empty() && world.rank() == 0) log_.warn("{}", problem);
  }
  schedule_.begin(progress_.step, measure_early(expected_, walltime));
}

double Checkpointer::expected_save() const {
  if (slowest_ > 0) return slowest_;
  return schedule_.early(progress_.step) ? 0 : expected_;
}

CheckpointMeta Checkpointer::meta_of(const std::string& json, std::optional<double> metric) const {
  return {.step = progress_.step,
          .json = json,
          .metric = metric,
          .deck_hash = deck_digest(deck_),
          .layout = engine_.mesh().layout().to_string(),
          .branch = branch_,
          .bases = bases_};
}

void Checkpointer::save(const std::string& meta_json, std::optional<double> metric,
                        double step_seconds) {
  drain();
  const double drained = now_seconds();
  const CheckpointMeta meta = meta_of(meta_json, metric);
  last_ = false;
  const bool early = schedule_.early(progress_.step);
  if (saver_ && !early) {
    save_aside(meta, step_seconds, drained);
  } else {
    check_weights(engine_, progress_.step);
    save_here(meta, false);
  }
  seconds_ += now_seconds() - drained;
  // A synchronous early save does not show the cost of asynchronous ones.
  if (!saver_) say_schedule(step_seconds);
}

void Checkpointer::save_aside(const CheckpointMeta& meta, double step_seconds, double since) {
  const bool aside = reads_weights_aside(engine_);
  if (!aside) check_weights(engine_, progress_.step);
  *saving_ = progress_.step;
  drain_ = 0;
  step_seconds_ = step_seconds;
  saver_->start(meta, tensors_of_save(), aside ? weight_check_of_save(engine_) : SaveCheck{});
  engine_.before_update([this](const Stream& stream) { before_update(stream); });
  stall_ = now_seconds() - since;
}

/// Called inside the step after the save, on every rank.
void Checkpointer::before_update(const Stream& stream) {
  const double start = now_seconds();
  if (options_.enter) options_.enter("copying the state");
  if (saver_->copied() != nullptr) stream.wait(*saver_->copied());
  const std::string refusal = saver_->await_copied();
  const double waited = now_seconds() - start;
  stall_ += waited;
  seconds_ += waited;
  if (!refusal.empty()) {
    last_ = true;
    report(saver_->wait());
    check_weights(engine_, *saving_);  // has more details, and throws
    NumericError error(fmt::format("step {}: {}", *saving_, refusal), "continue without that node");
    error.set_agreed_ranks(engine_.mesh().world().size());
    throw error;
  }
  log_.info("step {}: saving in background (paused {})", *saving_, format_duration(stall_));
  say_schedule(step_seconds_);
}

bool Checkpointer::save_last(const std::string& meta_json, std::optional<double> metric) {
  drain();
  const double start = now_seconds();
  last_ = true;
  check_weights(engine_, progress_.step);
  const bool saved = save_here(meta_of(meta_json, metric), true);
  seconds_ += now_seconds() - start;
  return saved;
}

/// Saves and waits. If there is a saver thread, it also makes this save, because it alone lays
/// files out.
bool Checkpointer::save_here(const CheckpointMeta& meta, bool last) {
  *saving_ = meta.step;
  last_ = last;
  drain_ = 0;
  const double start = now_seconds();
  const std::vector<StoredTensor> tensors = tensors_of_save();
  SaveResult result;
  if (saver_) {
    saver_->start_in_place(meta, tensors);
    result = saver_->wait();
  } else {
    result = store_.save(meta, tensors);
  }
  stall_ = now_seconds() - start;
  return report(result);
}

void Checkpointer::poll() {
  if (!saver_ || !saver_->pending()) return;
  if (const auto result = saver_->poll()) report(*result);
}

void Checkpointer::drain() {
  if (!saver_ || !saver_->pending()) return;
  const double start = now_seconds();
  const SaveResult result = saver_->wait();
  drain_ = now_seconds() - start;
  seconds_ += drain_;
  if (drain_ > kWorthALine)
    log_.info("step {}: waited {} for the save of step {}", progress_.step, format_duration(drain_),
              *saving_);
  report(result);
}

bool Checkpointer::report(const SaveResult& result) {
  slowest_ = std::max(slowest_, result.seconds);
  const bool speaks = engine_.mesh().rank() == 0;
  if (options_.record && speaks)
    options_.record(fmt::format(
        "{{\"event\":\"save\",\"step\":{},\"saved\":{},\"async\":{},\"bytes\":{},\"stall\":{:.6f},"
        "\"drain\":{:.6f},\"layout\":{:.6f},\"write\":{:.6f},\"fsync\":{:.6f},\"commit\":{:.6f},"
        "\"total\":{:.6f}}}",
        *saving_, result.saved, saver_ != nullptr && !last_, result.bytes, stall_, drain_,
        result.layout_seconds, result.write_seconds, result.fsync_seconds, result.commit_seconds,
        result.seconds));
  if (!result.saved) {
    ++failures_;
    const bool lost = options_.directory != nullptr && options_.directory->lost();
    if (speaks)
      log_.error("checkpoint of step {} FAILED{}: {}", *saving_,
                 last_ || lost ? "" : ", training goes on", result.reason);
    return false;
  }
  last_path_ = result.path;
  log_.info("checkpoint {} ({}, {}, {}/s; stall {}, drain {}, commit {})", result.path,
            format_bytes(static_cast<double>(result.bytes)), format_duration(result.seconds),
            format_bytes(result.bytes_per_second()), format_duration(stall_),
            format_duration(drain_), format_duration(result.commit_seconds));
  for (const std::string& line : result.warnings) log_.warn("{}", line);
  if (speaks && options_.directory != nullptr) list_checkpoint(result.path);
  return true;
}

/// Adds a line to the list of the checkpoints of all runs of a folder.
void Checkpointer::list_checkpoint(const std::string& path) {
  const std::string list = options_.directory->checkpoints_of_all();
  if (list.empty()) return;
  const std::string best = std::isfinite(progress_.best_val_loss)
                               ? fmt::format(" best_val_loss={:.6f}", progress_.best_val_loss)
                               : "";
  const std::string fault =
      append_to_file(list, fmt::format("{} step={} {}{}\n", timestamp(), *saving_, path, best));
  if (!fault.empty() && !std::exchange(list_failed_, true))
    log_.info("the checkpoint is not in the list of all runs: {}", fault);
}

void Checkpointer::say_schedule(double step_seconds) {
  // A copy in the background slows training by about as much as waiting for it would.
  const double cost = std::max(stall_, saver_ ? saver_->copy_seconds() : 0);
  std::array<double, 3> slowest{cost, slowest_, step_seconds};
  engine_.mesh().world().all_reduce(slowest.data(), slowest.size(), DType::f64, ReduceOp::max);
  const std::string line = schedule_.saved(
      *saving_, {.stall = slowest[0], .whole = slowest[1], .step_seconds = slowest[2]});
  if (!line.empty()) log_.info("{}", line);
}

}  // namespace choir
