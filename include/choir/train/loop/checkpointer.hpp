#pragma once
// Saving and resuming a run: the store, what goes into it, when, and what the log says about it.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "choir/core/log.hpp"
#include "choir/core/progress_line.hpp"
#include "choir/deck/deck.hpp"
#include "choir/store/background_saver.hpp"
#include "choir/train/loop/faults.hpp"
#include "choir/train/loop/run_directory.hpp"
#include "choir/train/loop/save_schedule.hpp"
#include "choir/train/step/step_plan.hpp"
#include "choir/train/step/train_checkpoint.hpp"

namespace choir {

class Checkpointer {
 public:
  struct Options {
    bool async = false;
    std::size_t snapshot_bytes = 0;  ///< of this rank, with async
    /// Gets an object for metrics.jsonl after every save.
    std::function<void(const std::string& json)> record{};
    /// Is told what a step stops for.
    std::function<void(std::string_view phase)> enter{};
    /// The owner of the folder; nullptr: nobody else writes it.
    const RunDirectory* directory = nullptr;
  };
  /// Collective. `folder`: <run>/checkpoints. Everything referred to must outlive this.
  Checkpointer(const Deck& deck, const std::string& folder, Engine& engine, Progress& progress,
               const Faults& faults, Logger& log, Options options);
  /// Collective. Waits for the save in flight and says what came of it.
  ~Checkpointer();

  /// Collective. Restores parameters, moments and progress. StorageError where the checkpoint is
  /// not of this model.
  void restore(const Checkpoint& found, const TrainMeta& meta);
  /// Collective. Before the first step of this process. With a walltime it measures what the file
  /// system takes, so that there is time for the first save.
  void begin();

  /// After this step there is a save, whatever the validation says. The same on every rank.
  bool due(std::int64_t step) const { return schedule_.due(step); }
  /// Collective, with no step in flight. A failure is logged and counted, never thrown, but
  /// weights that are not what they should be end the run (check_weights()): nothing drifted is
  /// committed. With async it waits for the save before, if that is in flight, and returns at once:
  /// the state is copied, and weights are compared, until the next step wants to change them, which
  /// waits for the rest and throws what is to be thrown. Steps must follow, and nothing else may
  /// change the state.
  /// `metric`: validation loss, if just measured; `step_seconds`: mean of this rank so far.
  void save(const std::string& meta_json, std::optional<double> metric, double step_seconds);
  /// Collective. The same, but nothing comes after: returns when it is done, and whether it was.
  bool save_last(const std::string& meta_json, std::optional<double> metric);
  /// Local. Says what came of a save that has ended meanwhile.
  void poll();
  /// Local. Waits for the save in flight.
  void drain();

  /// Local. The latest step in the folder, 0 for none.
  std::int64_t newest_step() const;
  const std::string& last_path() const { return last_path_; }
  /// Seconds of the slowest save so far, 0 before the first has ended.
  double slowest_save() const { return slowest_; }
  /// What a stop request must leave time for: that, or while nothing is known what is to be feared
  /// of this file system. 0 while an early save is going to tell.
  double expected_save() const;
  int failures() const { return failures_; }
  /// Seconds in which training stood still for saves.
  double seconds() const { return seconds_; }

 private:
  CheckpointMeta meta_of(const std::string& json, std::optional<double> metric) const;
  bool save_here(const CheckpointMeta& meta, bool last);
  bool report(const SaveResult& result);
  void save_aside(const CheckpointMeta& meta, double step_seconds, double since);
  void before_update(const Stream& stream);
  void say_schedule(double step_seconds);
  StoreOptions store_options(const Faults& faults) const;
  PhaseProgress progress_lines();
  void begin_branch(const Manifest* parent);

  const Deck& deck_;
  Engine& engine_;
  Progress& progress_;
  Logger& log_;
  Options options_;
  /// The step of the save being made; the thread that makes it reads it.
  std::shared_ptr<std::int64_t> saving_ = std::make_shared<std::int64_t>(-1);
  std::string tag_;  // of this start's temporary files
  CheckpointStore store_;
  std::unique_ptr<BackgroundSaver> saver_;
  SaveSchedule schedule_;
  std::string phase_;  // of the progress line
  std::optional<ProgressLine> progress_line_;
  std::string last_path_;
  Branch branch_;
  double bytes_ = 0;              // of a save
  double expected_ = 0;           // seconds of a save, while none has ended
  double stall_ = 0, drain_ = 0;  // of the save last begun: for its copy, and for its end
  double step_seconds_ = 0;       // when it was begun
  double slowest_ = 0, seconds_ = 0;
  int failures_ = 0;
  bool last_ = false;  // the save last begun is the run's last
};

}  // namespace choir
