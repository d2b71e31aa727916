#pragma once
// The record that a start leaves in its run directory. A start that is refused (by its deck, its
// data, its checkpoint or the machine) is no part of the run that the directory holds: log.txt
// becomes what it was, so that reports keep the state of that run, and the lines of the refused
// start go to refused.txt. A start that succeeded, or that had no run before it, belongs to the
// run, and its end is written to log.txt.

#include <cstdint>
#include <exception>
#include <string>

namespace choir {

class RunDirectory;

class StartRecord {
 public:
  /// Looks for a run in the directory, before anything is written there. Local, on every rank.
  explicit StartRecord(const RunDirectory& directory);

  /// Rank 0 has created and locked the directory, and has not opened the log yet. Called on rank 0.
  void before_log();
  /// The directory belongs to this start. Called on every rank.
  void own() { owned_ = true; }
  /// The run has begun: deck.json is that of this start. Called on every rank.
  void begin() { begun_ = true; }
  /// Writes the end of this start or run, because stderr is often not kept. Nothing is written
  /// where the directory belongs to another run. `everywhere`: all ranks have this error, and
  /// `rank` 0 writes it for them. Errors of writing (a full disk) are ignored. Local.
  void end(const std::exception& error, bool everywhere, int rank);

 private:
  void set_aside(const std::string& end) const;

  const RunDirectory& directory_;
  bool had_run_, owned_ = false, begun_ = false;
  std::int64_t log_bytes_ = 0;  // before this start
};

}  // namespace choir
