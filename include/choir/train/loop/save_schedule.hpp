#pragma once
// When a run saves on its way: every so many steps, or as often as loses least time. With failures
// M seconds apart in the mean, saves that cost C seconds and are W apart lose the share
// C / W + W / (2 M) of a run: the saves, and half an interval of steps done again after each
// failure. It is least at W = sqrt(2 C M) (J. W. Young, 1974; J. T. Daly, 2006, first order).
#include <cstdint>
#include <string>

#include "choir/deck/deck.hpp"

namespace choir {

/// Seconds. Pure.
double best_save_interval(double cost, double mtbf);
/// C / W + W / (2 M). Pure.
double lost_share(double interval, double cost, double mtbf);

/// checkpoint.mtbf in seconds, or what stands for it: 1000 hours a node (a node of eight GPUs:
/// A. Kokolis et al., 2025, report 7.9 hours for jobs of 1024 GPUs), and at most 24 hours, as
/// people and power end jobs as well.
double assumed_mtbf(const CheckpointSection& section, int nodes);

/// Before the first save of a run: what it may take. A busy file system takes 200 MB/s of a node;
/// slower where `measured` (bytes/s of all ranks, 0: not measured) says so. Pure.
double expected_first_save(double bytes, int nodes, double measured);
/// Whether a save of `expected` seconds takes so much of the walltime that it is measured after the
/// first step, before it is needed. Pure.
bool measure_early(double expected, double walltime);
/// "" where run.walltime has room for one step, and a save before and after its margin; else a line
/// that says what to do. Pure.
std::string short_walltime(double expected, double margin, double walltime);

/// What saves cost so far, equal on every rank: so are the decisions.
struct SaveCost {
  double stall = 0;         ///< of a save, seconds in which no step was made
  double whole = 0;         ///< of the slowest one, from its beginning to its commit; 0: not known
  double step_seconds = 0;  ///< of a step, mean
};

class SaveSchedule {
 public:
  /// With "auto" the first save comes after `first_step` + kFirstSteps.
  static constexpr std::int64_t kFirstSteps = 10;
  SaveSchedule(const CheckpointSection& section, int nodes);

  bool automatic() const { return section_.interval == CheckpointSection::kAutoInterval; }
  /// The run begins after `step`. `early`: save after its first step, whatever the interval.
  void begin(std::int64_t step, bool early);
  bool due(std::int64_t step) const;
  bool early(std::int64_t step) const { return step == early_; }
  /// After the save of `step`. Gives a line for the log: what was worked out, or once what would be
  /// better than a fixed interval; else "".
  std::string saved(std::int64_t step, const SaveCost& cost);

 private:
  std::string advice(const SaveCost& cost);

  CheckpointSection section_;
  int nodes_;
  double mtbf_;
  std::int64_t next_ = -1, early_ = -1;
  bool advised_ = false;
};

}  // namespace choir
