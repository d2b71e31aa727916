#pragma once
// Saving and resuming a run: the store, what goes into it, and what the log says about it.
#include <optional>
#include <string>

#include "choir/core/log.hpp"
#include "choir/core/progress_line.hpp"
#include "choir/data/tokenizer.hpp"
#include "choir/train/deck.hpp"
#include "choir/train/faults.hpp"
#include "choir/train/train_checkpoint.hpp"

namespace choir {

class Checkpointer {
 public:
  /// `folder`: <run>/checkpoints. Everything referred to must outlive this.
  Checkpointer(const Deck& deck, const std::string& folder, Engine& engine, Progress& progress,
               const Faults& faults, Logger& log);

  /// Collective. Follows checkpoint.resume: restores parameters, moments and progress and returns
  /// true, or leaves the fresh model and returns false. StorageError when every checkpoint is
  /// damaged, or none fits; DataError when the checkpoint was trained on another vocabulary than
  /// `vocab_hash` (0: unknown).
  bool restore(std::uint64_t vocab_hash);
  /// Collective. A failure is logged and counted, never thrown. `metric`: validation loss, if just
  /// measured.
  bool save(const std::string& meta_json, std::optional<double> metric);

  /// Local. The latest step in the folder, 0 for none.
  std::int64_t newest_step() const;
  const std::string& last_path() const { return last_path_; }
  /// Seconds of the slowest save so far: what a stop request must leave time for.
  double slowest_save() const { return slowest_; }
  int failures() const { return failures_; }
  double seconds() const { return seconds_; }

 private:
  const Deck& deck_;
  Engine& engine_;
  Progress& progress_;
  Logger& log_;
  CheckpointStore store_;
  std::string phase_;  // of the progress line
  std::optional<ProgressLine> progress_line_;
  std::string last_path_;
  double slowest_ = 0, seconds_ = 0;
  int failures_ = 0;
};

}  // namespace choir
