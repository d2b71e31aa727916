#pragma once
// A thread that ends the job when this rank makes no progress or a rank of its node has died, so
// that no hang goes without a name.
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "choir/comm/watch/heartbeat_board.hpp"

namespace choir {

class FlightExchange;

class Watchdog {
 public:
  struct Options {
    double timeout_seconds = 0;  ///< allowed between two beats; 0 switches the watchdog off
    int rank = 0;
    std::string host;
    /// What to do after the report (which is its argument); by default stderr, the abort hooks (see
    /// AbortHook) and MpiSession::abort(5). Runs on the watchdog's thread.
    std::function<void(const std::string&)> on_timeout;
    /// Beats are shown there and the report names who is behind; may be null.
    HeartbeatBoard* board = nullptr;
    /// With the report goes a file rank_N.txt there for each rank that can be seen: phase,
    /// communicators, last calls. Empty: none.
    std::string directory{};
    /// A phase that takes longer is mentioned every so often; 0: never.
    double still_seconds = 0;
    /// What is not the end: of long phases, and what one node knows before all have reported; by
    /// default stderr.
    std::function<void(const std::string&)> on_line{};
    /// Where the board does not see all ranks: a hang is reported by one rank of each node, and the
    /// first of these puts together what they saw, with the exchange's files in `directory`. Null:
    /// every rank reports for itself.
    std::shared_ptr<const FlightExchange> exchange{};
    double exchange_seconds = 2;  ///< how long the others are waited for
  };

  /// Local. Starts the thread unless switched off; time counts from the first beat.
  explicit Watchdog(Options options);
  /// Stops the thread.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  bool on() const { return options_.timeout_seconds > 0; }
  /// Local, cheap (a lock nobody holds), allocates nothing: progress was made and `phase` (cut to
  /// 120 bytes) begins: "forward", "step 12: all_reduce dp". `timeout_seconds` above 0 holds for
  /// this phase alone (the first step, a save), otherwise the usual one.
  void beat(std::string_view phase, double timeout_seconds = 0);
  /// Local, as beat(): this rank stops in `phase` to wait for another one, which the board shows.
  /// For phases in which ranks wait for each other differently often (a pipeline).
  void await(std::string_view phase, double timeout_seconds = 0);
  /// Local: nothing is expected until the next beat. Nobody is missed meanwhile.
  void rest();
  /// Local: the usual time-out of beats from now on.
  void allow(double timeout_seconds);

 private:
  void watch();
  void begin(std::string_view phase, double timeout_seconds, bool waiting);
  std::string silent_report(double silent) const;
  std::string death_report(const std::string& death) const;
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
  double mention_at_ = 0;               ///< when the phase is mentioned next
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace choir
