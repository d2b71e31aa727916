#pragma once
// Reasons to stop early, as one rank sees them. Ranks agree on them at step boundaries (see
// Trainer).
#include <string>

namespace choir {

enum class Stop {
  none = 0,
  save = 1,      ///< SIGUSR1, walltime or the stop file: checkpoint, then exit 75
  terminate = 2  ///< SIGTERM or SIGINT: stop cleanly; there may be no time to save
};

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

  /// Local. `expected_seconds`: how long until the next call, saving included; walltime looks ahead
  /// by it.
  Stop poll(double expected_seconds);
  /// "SIGUSR1", "walltime of 1h 00m", "stop file runs/x/stop_now" ...
  const std::string& reason() const { return reason_; }

 private:
  double deadline_;
  double walltime_, margin_;
  std::string stop_file_;
  std::string reason_;
};

}  // namespace choir
