#pragma once
// Reasons to stop early, as one rank sees them. Ranks agree on them at step boundaries (see
// Trainer).
#include <cstdint>
#include <string>

namespace choir {

/// The weaker first: the ranks of a job may see different ones at a step, and follow the greatest.
/// All but the last two leave time for a checkpoint, and end with 75.
enum class Stop : std::int8_t {
  none,
  drill,     ///< fault.stop_step
  file,      ///< the stop file
  walltime,  ///< its end, less the margin, is nearer than the next step
  user,      ///< SIGUSR1
  interrupt,
  terminate  ///< SIGINT and SIGTERM: stop cleanly; there may be no time to save
};
/// There is time for an evaluation and a checkpoint; also of none.
constexpr bool leaves_time(Stop stop) {
  return stop < Stop::interrupt;
}

/// For a whole process, once, as early as it can: SIGUSR1 no longer ends it. One that arrives
/// before a StopRequest lives is kept for it; those after are ignored (launchers and batch systems
/// repeat themselves).
void hold_stop_requests();

/// Installs handlers for SIGUSR1, SIGTERM and SIGINT while it lives (one at a time a process). A
/// handler only sets a flag; the second SIGTERM or SIGINT ends the process at once.
class StopRequest {
 public:
  /// `walltime` seconds from now (0: none), `margin` seconds kept for the last save. `stop_file` is
  /// polled.
  StopRequest(double walltime, double margin, std::string stop_file);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;

  /// Until the next poll(), which may be minutes away while a run starts, SIGTERM and SIGINT end
  /// the process at once: nothing is to be saved yet.
  void obey_at_once();

  /// Local: the greatest reason. `expected_seconds`: how long until the next call, saving included;
  /// walltime looks ahead by it.
  Stop poll(double expected_seconds);
  /// "SIGUSR1", "walltime of 1h 00m", "stop file runs/x/stop_now" ...; also of what another rank
  /// saw.
  std::string reason(Stop stop) const;

 private:
  double deadline_;
  double walltime_, margin_;
  std::string stop_file_;
};

}  // namespace choir
