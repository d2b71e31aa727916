#pragma once
// A thread that ends the job if this rank makes no progress or a rank of its node has died, so that
// every hang is reported with its culprit; checks that the thread polls, because nobody else would
// see their failures (asynchronous errors of NCCL while a graph replays); and actions that run when
// the process gives up while its other threads may be stuck (NCCL's communicators are aborted, so
// that kernels that wait for a peer end).

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "src/comm/watch/heartbeat_board.hpp"

namespace choir {

/// Runs `action` on a thread of its own and waits at most `seconds`; returns false if it takes
/// longer. The thread is then left behind, so the action must own what it uses.
bool run_bounded(std::function<void()> action, double seconds);

class AbortHook {
 public:
  /// `action` must return soon and may run concurrently with everything else in the process.
  explicit AbortHook(std::function<void()> action);
  ~AbortHook();
  AbortHook(const AbortHook&) = delete;
  AbortHook& operator=(const AbortHook&) = delete;

  /// Runs all registered actions as run_bounded() does.
  static bool run_all(double seconds);

 private:
  int number_;
};

/// A check that watchdogs of this process poll (Watchdog::Options::checks_health).
class HealthCheck {
 public:
  /// `failure` returns the message of a failure that lasts, or "". It must return soon, and may run
  /// concurrently with everything else in the process.
  explicit HealthCheck(std::function<std::string()> failure);
  ~HealthCheck();
  HealthCheck(const HealthCheck&) = delete;
  HealthCheck& operator=(const HealthCheck&) = delete;

  /// Returns the message of the first check that fails, or "".
  static std::string first_failure();

 private:
  int number_;
};

/// Ends the NCCL kernels that wait for peers; every later call on their communicators throws.
/// Returns false if this takes longer than `seconds`. Local, may be called from any thread.
bool abort_communicators(double seconds);

/// The usual end of a job that hangs: prints the report, aborts NCCL and then all ranks with exit
/// code 5.
void report_and_abort(const std::string& report);

class FlightExchange;

class Watchdog {
 public:
  struct Options {
    double timeout_seconds = 0;  ///< allowed between two beats; 0 switches the watchdog off
    int rank = 0;
    /// Poll the health checks, and end the job if one of them fails twice in a row.
    bool checks_health = false;
    std::string host;
    /// Called on the watchdog's thread after the report, which is its argument; by default it
    /// prints to stderr, runs the abort hooks (see AbortHook) and calls MpiSession::abort(5).
    std::function<void(const std::string&)> on_timeout;
    /// Board that shows the beats and names the rank that is behind in the report; may be null.
    HeartbeatBoard* board = nullptr;
    /// Directory in which the report writes a file rank_N.txt for each visible rank: phase,
    /// communicators, last calls. Empty: no files.
    std::string directory{};
    /// A phase that takes longer is mentioned at this interval; 0: never.
    double still_seconds = 0;
    /// Receives lines that do not end the job: about long phases, and the report of one node before
    /// all have reported; by default they go to stderr.
    std::function<void(const std::string&)> on_line{};
    /// Used if the board does not show all ranks. One rank of each node reports a hang, and the
    /// first of them combines the reports with the exchange's files in `directory`. Null: every
    /// rank reports for itself.
    std::shared_ptr<const FlightExchange> exchange{};
    double exchange_seconds = 2;  ///< maximum wait for the other nodes
  };

  /// Starts the thread unless the timeout is 0; time counts from the first beat. Local.
  explicit Watchdog(Options options);
  /// Stops the thread.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  bool on() const { return options_.timeout_seconds > 0; }
  /// Progress was made and `phase` (cut to 120 bytes) begins: "forward", "step 12: all_reduce dp".
  /// A `timeout_seconds` above 0 applies only to this phase (the first step, a save), otherwise the
  /// usual one applies. Local, cheap (an uncontended lock), allocates nothing.
  void beat(std::string_view phase, double timeout_seconds = 0);
  /// Like beat(), but this rank waits for another one in `phase`, and the board shows it. For
  /// phases in which the number of waits differs between ranks (a pipeline). Local.
  void await(std::string_view phase, double timeout_seconds = 0);
  /// Suspends the watchdog until the next beat. Local.
  void rest();
  /// Sets the usual timeout of later beats. Local.
  void allow(double timeout_seconds);

 private:
  void watch();
  void begin(std::string_view phase, double timeout_seconds, bool waiting);
  std::string silent_report(double silent) const;
  std::string death_report(const std::string& death) const;
  std::string failure_report(const std::string& failure) const;
  std::string still_text(double silent) const;
  std::string write_flights() const;
  std::string whole_report() const;
  void give_up(const std::string& report, bool all_know);

  Options options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  char phase_[128] = {};
  double beaten_at_ = 0, allowed_ = 0;  ///< allowed_ 0: resting
  double usual_ = 0;                    ///< time-out of a beat without one
  double mention_at_ = 0;               ///< time of the next mention of the phase
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace choir
