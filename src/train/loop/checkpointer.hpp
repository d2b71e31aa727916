#pragma once
// Saving and resuming of a run: the store, its contents, the schedule, and the log lines about
// saves.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "src/run/step_plan.hpp"
#include "src/store/background_saver.hpp"
#include "src/train/loop/faults.hpp"
#include "src/train/loop/run_directory.hpp"
#include "src/train/loop/save_schedule.hpp"
#include "src/train/step/train_checkpoint.hpp"

namespace choir {

class Checkpointer {
 public:
  struct Options {
    bool async = false;
    std::size_t snapshot_bytes = 0;  ///< of this rank, with async
    /// Receives an object for metrics.jsonl after every save.
    std::function<void(const std::string& json)> record{};
    /// Called with the phase that makes a step wait.
    std::function<void(std::string_view phase)> enter{};
    /// The owner of the folder; nullptr: no other run writes it.
    const RunDirectory* directory = nullptr;
  };
  /// `folder` is <run>/checkpoints. All arguments must outlive this. Collective.
  Checkpointer(const Deck& deck, const std::string& folder, Engine& engine, Progress& progress,
               const Faults& faults, Logger& log, Options options);
  /// Waits for the save in flight and reports its result. Collective.
  ~Checkpointer();

  /// Restores parameters, moments and progress. Throws StorageError if the checkpoint belongs to
  /// another model. Collective.
  void restore(const Checkpoint& found, const TrainMeta& meta);
  /// Tells where the parameters of a run that begins are stored. With model.lora and without
  /// checkpoint.store_base, saves refer to those that are frozen instead of storing them. Local.
  void begin_on(const std::vector<BaseFile>& bases);
  /// Called before the first step of this process. With a walltime it measures the file system, so
  /// that there is time for the first save. Collective.
  void begin();

  /// True if there is a save after this step, whatever the validation result. Equal on every rank.
  bool due(std::int64_t step) const { return schedule_.due(step); }
  /// Saves with no step in flight. A failure is logged and counted, never thrown; but wrong weights
  /// (check_weights()) end the run, so that nothing wrong is committed. With async it waits for an
  /// earlier save in flight and returns immediately: the state is copied, and the weights are
  /// compared, until the next step is about to change them; that step waits for the rest and throws
  /// if needed. Steps must follow, and nothing else may change the state. `metric` is the
  /// validation loss, if just measured; `step_seconds` is the mean of this rank so far. Collective.
  void save(const std::string& meta_json, std::optional<double> metric, double step_seconds);
  /// Saves as the last action of a run: returns when the save is done, true if it succeeded.
  /// Collective.
  bool save_last(const std::string& meta_json, std::optional<double> metric);
  /// Reports the result of a save that has ended meanwhile. Local.
  void poll();
  /// Waits for the save in flight. Local.
  void drain();

  /// The latest step in the folder, 0 if there is none. Local.
  std::int64_t newest_step() const;
  const std::string& last_path() const { return last_path_; }
  /// Seconds of the slowest save so far or, before the first has ended, a cautious estimate.
  double slowest_save() const { return slowest_ > 0 ? slowest_ : expected_; }
  /// Seconds that a stop must leave for a save: the slowest so far or, before the first, a cautious
  /// estimate for this file system. 0 while an early save is about to measure it.
  double expected_save() const;
  int failures() const { return failures_; }
  /// Seconds for which training waited for saves.
  double seconds() const { return seconds_; }

 private:
  std::vector<StoredTensor> tensors_of_save();
  CheckpointMeta meta_of(const std::string& json, std::optional<double> metric) const;
  bool save_here(const CheckpointMeta& meta, bool last);
  bool report(const SaveResult& result);
  void list_checkpoint(const std::string& path);
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
  /// The step of the save in progress; the thread that saves reads it.
  std::shared_ptr<std::int64_t> saving_ = std::make_shared<std::int64_t>(-1);
  std::string tag_;  // for the names of temporary files of this start
  CheckpointStore store_;
  std::unique_ptr<BackgroundSaver> saver_;
  SaveSchedule schedule_;
  std::string phase_;  // of the progress line
  std::optional<ProgressLine> progress_line_;
  std::string last_path_;
  bool list_failed_ = false;
  Branch branch_;
  std::vector<BaseFile> bases_;  // of the tensors that saves leave out
  double bytes_ = 0;             // bytes of a save
  double expected_ = 0;          // seconds of a save, before one has ended
  double stall_ = 0,
         drain_ = 0;  // seconds that the last save paused training, for its copy and for its end
  double step_seconds_ = 0;  // at the start of the last save
  double slowest_ = 0, seconds_ = 0;
  int failures_ = 0;
  bool last_ = false;  // the current save is the last of the run
};

}  // namespace choir
