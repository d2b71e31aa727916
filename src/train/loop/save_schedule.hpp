#pragma once
// When and how a run saves: at a fixed interval of steps, or at the interval that loses least time;
// waiting for the save, or in the background. With a mean time of M seconds between failures, saves
// that cost C seconds and are W seconds apart lose the fraction C / W + W / (2 M) of a run: the
// saves, and half an interval of repeated steps after each failure. It is minimal at W = sqrt(2 C
// M) (J. W. Young, 1974; J. T. Daly, 2006, first order).

#include <cstdint>
#include <limits>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"
#include "src/run/step_plan.hpp"

namespace choir {

/// Seconds. Pure.
double best_save_interval(double cost, double mtbf);
/// C / W + W / (2 M). Pure.
double lost_share(double interval, double cost, double mtbf);

/// checkpoint.mtbf in seconds, or the assumption for 0: 1000 hours per node (for nodes of eight
/// GPUs, A. Kokolis et al., 2025, report 7.9 hours for jobs of 1024 GPUs), and at most 24 hours,
/// because people and power failures end jobs too.
double assumed_mtbf(const CheckpointSection& section, int nodes);

/// Estimated seconds of the first save of a run. A busy file system takes 200 MB/s per node, or
/// less if `measured` (bytes/s of all ranks, 0: not measured) is lower. Pure.
double expected_first_save(double bytes, int nodes, double measured);
/// True if a save of `expected` seconds takes so much of the walltime that it should be measured
/// after the first step, before it is needed. Pure.
bool measure_early(double expected, double walltime);
/// "" if run.walltime has room for one step and a save before and after its margin; otherwise a
/// message with advice. Pure.
std::string short_walltime(double expected, double margin, double walltime);

/// The costs of saves so far. They are equal on every rank, and so are the decisions.
struct SaveCost {
  double stall = 0;         ///< seconds per save in which no step was made
  double whole = 0;         ///< of the slowest save, from its beginning to its commit; 0: unknown
  double step_seconds = 0;  ///< mean seconds of a step
};

class SaveSchedule {
 public:
  /// With "auto" the first save follows step `first_step` + kFirstSteps.
  static constexpr std::int64_t kFirstSteps = 10;
  /// `milestone`: a step after which there is also a save, unless the run saves only at its end;
  /// -1: none. `last_step`: of the run, which gives no advice that exceeds it.
  SaveSchedule(const CheckpointSection& section, int nodes, std::int64_t milestone = -1,
               std::int64_t last_step = std::numeric_limits<std::int64_t>::max());

  bool automatic() const { return section_.interval == CheckpointSection::kAutoInterval; }
  /// The run begins after `step`. `early`: save after its first step, whatever the interval.
  void begin(std::int64_t step, bool early);
  bool due(std::int64_t step) const;
  bool early(std::int64_t step) const { return step == early_; }
  /// Called after the save of `step`. Returns a line for the log: the new interval, or once the
  /// advice to change a fixed interval; otherwise "".
  std::string saved(std::int64_t step, const SaveCost& cost);

 private:
  std::string advice(const SaveCost& cost);

  CheckpointSection section_;
  int nodes_;
  double mtbf_;
  std::int64_t last_step_;
  std::int64_t milestone_, next_ = -1, early_ = -1;
  bool advised_ = false;
};

/// Returns true if checkpoint.async is not false, every node has room for `plan.snapshot_bytes`,
/// and MPI supports threads. If "auto" falls back to false, `why` has the reason; if "true" is
/// impossible, throws DeckError. Returns false for runs without saves during training, which would
/// have nothing to overlap. Collective.
bool choose_async(const Deck& deck, const StepPlan& plan, Mesh& mesh, const Device& device,
                  std::string& why);
/// Adds the entry of the snapshot to a memory plan.
void add_snapshot(MemoryPlan& memory, const StepPlan& plan);

}  // namespace choir
