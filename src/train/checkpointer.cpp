#include "choir/train/checkpointer.hpp"

#include <algorithm>
#include <limits>

#include "choir/comm/agreement.hpp"
#include "choir/core/clock.hpp"
#include "choir/data/text_units.hpp"

namespace choir {
namespace {

constexpr int kKeepAll = std::numeric_limits<int>::max();

void require_vocabulary(const Checkpoint& found, const TrainMeta& meta, std::uint64_t vocab_hash) {
  if (meta.vocabulary.empty() || vocab_hash == 0) return;
  const TextUnits trained = TextUnits::from_json(meta.vocabulary, found.path);
  if (trained.hash() == vocab_hash) return;
  throw DataError(
      fmt::format("the vocabulary of the training data ({:016x}) is not that of the checkpoint {} "
                  "({} entries, {:016x})",
                  vocab_hash, found.path, trained.vocab_size(), trained.hash()),
      "name the data it was trained on in data.train, or start anew in another run.dir");
}

}  // namespace

Checkpointer::Checkpointer(const Deck& deck, const std::string& folder, Engine& engine,
                           Progress& progress, const Faults& faults, Logger& log)
    : deck_(deck),
      engine_(engine),
      progress_(progress),
      log_(log),
      store_(folder, engine.mesh().world(),
             {.retention = {.keep_last = deck.checkpoint.keep > 0 ? deck.checkpoint.keep : kKeepAll,
                            .keep_every = deck.checkpoint.keep_every,
                            .keep_best = deck.checkpoint.best},
              .fault = faults.in_save(progress.step),
              .progress = [this](const char* phase, std::int64_t done, std::int64_t total) {
                if (done == 0 || !progress_line_ || phase != phase_) {
                  phase_ = phase;
                  progress_line_.emplace(log_, std::string("checkpoint, ") + phase);
                }
                progress_line_->at(done, total);
              }}) {}

bool Checkpointer::restore(std::uint64_t vocab_hash) {
  if (deck_.checkpoint.resume == "none") return false;
  for (const std::string& line : store_.recover()) log_.warn("checkpoints: {}", line);
  std::optional<Checkpoint> found;
  if (deck_.checkpoint.resume == "auto")
    found = store_.find_newest_valid();
  else
    found = open_checkpoint(deck_.checkpoint.resume, engine_.mesh().world());
  if (!found) return false;
  if (engine_.mesh().rank() == 0)
    for (const std::string& line : found->skipped)
      log_.warn("passed over a damaged checkpoint: {}", line);
  together(engine_.mesh().world(), [&] {
    const TrainMeta meta = TrainMeta::parse(found->json, found->path);
    require_vocabulary(*found, meta, vocab_hash);
    progress_.data = meta.data;
  });
  const double start = now_seconds();
  store_.load(*found, tensors_to_load(engine_, progress_));
  engine_.instance().publish();
  engine_.resume(progress_.update_state());
  last_path_ = found->path;
  log_.info("resumed from {} (step {}, {})", found->path, progress_.step,
            format_duration(now_seconds() - start));
  return true;
}

std::int64_t Checkpointer::newest_step() const {
  const std::vector<std::int64_t> steps = store_.list();
  return steps.empty() ? 0 : steps.front();
}

bool Checkpointer::save(const std::string& meta_json, std::optional<double> metric) {
  // Nothing drifted is worth keeping: a rank with other weights ends the run, the checkpoints
  // before stay.
  require_equal_parameters(engine_, fmt::format("parameters after step {}", progress_.step));
  const CheckpointMeta meta{.step = progress_.step,
                            .json = meta_json,
                            .metric = metric,
                            .deck_hash = deck_digest(deck_),
                            .layout = engine_.mesh().layout().to_string()};
  const SaveResult result = store_.save(meta, tensors_to_save(engine_, progress_));
  slowest_ = std::max(slowest_, result.seconds);
  seconds_ += result.seconds;
  if (!result.saved) {
    ++failures_;
    if (engine_.mesh().rank() == 0)
      log_.error("checkpoint of step {} FAILED, training goes on: {}", progress_.step,
                 result.reason);
    return false;
  }
  last_path_ = result.path;
  log_.info("checkpoint {} ({}, {}, {}/s)", result.path,
            format_bytes(static_cast<double>(result.bytes)), format_duration(result.seconds),
            format_bytes(result.bytes_per_second()));
  for (const std::string& line : result.warnings) log_.warn("{}", line);
  return true;
}

}  // namespace choir
