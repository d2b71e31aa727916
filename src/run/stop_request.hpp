#pragma once
// Reasons to stop early, as seen by one rank. The ranks agree on them at step boundaries (see
// TrainingLoop).
#include <atomic>
#include <cstdint>
#include <string>

namespace choir {

/// In ascending priority: the ranks of a job may see different reasons at a step and follow the
/// greatest. All but the last two leave time for a checkpoint, and end with exit code 75.
enum class Stop : std::int8_t {
  none,
  drill,      ///< fault.stop_step
  file,       ///< the stop file
  walltime,   ///< the time limit, less the margin, would expire before the next step ends
  user,       ///< SIGUSR1
  interrupt,  ///< SIGINT: saves without an evaluation; launchers turn Ctrl-C into SIGTERM
  terminate   ///< SIGTERM: stops cleanly; there may be no time to save
};
/// True if there is time for an evaluation and a checkpoint; also true for `none`.
constexpr bool leaves_time(Stop stop) {
  return stop < Stop::interrupt;
}

/// Called once per process, as early as possible: SIGUSR1 no longer ends the process. A signal that
/// arrives before a StopRequest exists is kept for it; later ones are ignored, because launchers
/// and batch systems repeat them.
void hold_stop_requests();

/// Leaves a mark for jobs/launch, which names a file in the environment variable CHOIR_SAVED_FILE.
/// `steps`: from now on SIGUSR1 stops the run with a checkpoint, so that a request to stop need not
/// be a signal after which a launcher kills the ranks. `saved`: the run ended early and is saved,
/// even if the launcher reports another exit code. Nothing happens without jobs/launch. Local.
enum class LaunchMark : std::int8_t { steps, saved };
void leave_mark(LaunchMark mark);

/// Installs handlers for SIGUSR1, SIGTERM and SIGINT during its lifetime; one instance at a time
/// per process. A handler only sets a flag; the second SIGTERM or SIGINT ends the process
/// immediately.
class StopRequest {
 public:
  /// The time limit is `walltime` seconds from now (0: none), of which `margin` seconds are
  /// reserved for the last save. `stop_file` is polled.
  StopRequest(double walltime, double margin, std::string stop_file);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;

  /// Until the next poll(), which may be minutes away while a run starts, SIGTERM and SIGINT end
  /// the process immediately, because there is nothing to save yet.
  void obey_at_once();

  /// From now on this rank answers SIGTERM and SIGINT at once with a line on stderr: the step that
  /// runs may take longer than a launcher waits.
  void announce();
  /// No such line is written while `*over` is true: another rank has reported why it ends the run,
  /// and the signal comes from the launcher. `over` may be in shared memory; nullptr: none.
  static void silence_when(const std::atomic<bool>* over);

  /// Returns the greatest reason. `expected_seconds` is the time until the next call, including
  /// saves; the walltime check looks ahead by it. Local.
  Stop poll(double expected_seconds);
  /// "SIGUSR1, which ...", "walltime of 1h 00m", "stop file runs/x/stop_now" ...; also for reasons
  /// that another rank saw.
  std::string reason(Stop stop) const;

 private:
  double deadline_;
  double walltime_, margin_;
  std::string stop_file_;
};

}  // namespace choir
