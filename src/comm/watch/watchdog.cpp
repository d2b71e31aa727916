#include "src/comm/watch/watchdog.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "src/comm/mpi/mpi_session.hpp"
#include "src/comm/watch/flight_report.hpp"
#include "src/core/output.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

template <class Result>
struct Hooks {
  std::mutex mutex;
  std::map<int, std::function<Result()>> actions;
  int next = 0;

  int add(std::function<Result()> action) {
    const std::lock_guard lock(mutex);
    actions.emplace(next, std::move(action));
    return next++;
  }
  void remove(int number) {
    const std::lock_guard lock(mutex);
    actions.erase(number);
  }
};

/// Never destroyed, because a thread that was left behind may still use them.
template <class Result>
Hooks<Result>& hooks() {
  static auto* all = new Hooks<Result>();
  return *all;
}

struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

}  // namespace

AbortHook::AbortHook(std::function<void()> action)
    : number_(hooks<void>().add(std::move(action))) {}

AbortHook::~AbortHook() {
  hooks<void>().remove(number_);
}

bool AbortHook::run_all(double seconds) {
  return run_bounded(
      [] {
        // The lock is held throughout, so that an action's objects cannot be destroyed while it
        // runs.
        const std::lock_guard lock(hooks<void>().mutex);
        for (const auto& [number, action] : hooks<void>().actions) action();
      },
      seconds);
}

HealthCheck::HealthCheck(std::function<std::string()> failure)
    : number_(hooks<std::string>().add(std::move(failure))) {}

HealthCheck::~HealthCheck() {
  hooks<std::string>().remove(number_);
}

std::string HealthCheck::first_failure() {
  const std::lock_guard lock(hooks<std::string>().mutex);
  for (const auto& [number, failure] : hooks<std::string>().actions)
    if (std::string text = failure(); !text.empty()) return text;
  return {};
}

bool run_bounded(std::function<void()> action, double seconds) {
  const auto progress = std::make_shared<Progress>();
  std::thread([progress, action = std::move(action)] {
    action();
    const std::lock_guard lock(progress->mutex);
    progress->done = true;
    progress->changed.notify_all();
  }).detach();
  std::unique_lock lock(progress->mutex);
  return progress->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                    [&] { return progress->done; });
}

bool abort_communicators(double seconds) {
  return AbortHook::run_all(seconds);
}

namespace {

void say(const std::string& line) {
  write_fitted(stderr, line + "\n");
  std::fflush(stderr);
}

}  // namespace

void report_and_abort(const std::string& report) {
  say(report);
  constexpr double kForHooks = 1;
  if (!AbortHook::run_all(kForHooks)) say("choir: watchdog: NCCL could not be aborted in time");
  MpiSession::abort(ExitCode::communication);
}

namespace {

// Checks several times per timeout and not at the exact moment, so that a beat need not wake the
// thread, and often enough to notice dead processes and, at the second poll, failures within a
// second.
std::chrono::duration<double> interval_for(double timeout_seconds) {
  constexpr double kLooks = 10, kShortest = 0.005, kLongest = 0.25;
  return std::chrono::duration<double>(std::clamp(timeout_seconds / kLooks, kShortest, kLongest));
}

/// Returns why the files could not be written, or "".
std::string write_tables(const std::string& directory, const std::vector<RankFlight>& flights) {
  mkdir(directory.c_str(), 0777);
  const double now = now_seconds();
  for (const RankFlight& rank : flights) {
    const std::string path = fmt::format("{}/rank_{}.txt", directory, rank.world_rank);
    // Another rank may end the job at any time and must not leave an incomplete table behind.
    const std::string part = fmt::format("{}.{}", path, getpid());
    unlink(part.c_str());  // opening a pipe of that name would block
    std::FILE* file = std::fopen(part.c_str(), "wxe");
    if (file == nullptr) return fmt::format("cannot write {}: {}", part, std::strerror(errno));
    std::fputs(printable(flight_table(rank, now)).c_str(), file);
    if (std::fclose(file) != 0 || std::rename(part.c_str(), path.c_str()) != 0)
      return fmt::format("cannot write {}: {}", path, std::strerror(errno));
  }
  return {};
}

}  // namespace

Watchdog::Watchdog(Options options)
    : options_(std::move(options)), usual_(options_.timeout_seconds) {
  if (!on()) return;
  if (options_.host.empty()) options_.host = host_name();
  if (!options_.on_timeout) options_.on_timeout = report_and_abort;
  if (!options_.on_line) options_.on_line = say;
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::beat(std::string_view phase, double timeout_seconds) {
  begin(phase, timeout_seconds, false);
}

void Watchdog::await(std::string_view phase, double timeout_seconds) {
  begin(phase, timeout_seconds, true);
}

void Watchdog::begin(std::string_view phase, double timeout_seconds, bool waiting) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  const std::size_t length = std::min<std::size_t>(phase.size(), 120);
  std::memcpy(phase_, phase.data(), length);
  phase_[length] = '\0';
  if (options_.board) options_.board->publish(phase_, waiting);
  beaten_at_ = now_seconds();
  allowed_ = timeout_seconds > 0 ? timeout_seconds : usual_;
  mention_at_ = beaten_at_ + options_.still_seconds;
}

void Watchdog::rest() {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  allowed_ = 0;
}

void Watchdog::allow(double timeout_seconds) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  usual_ = timeout_seconds;
}

std::string Watchdog::silent_report(double silent) const {
  std::string report = fmt::format(
      "choir: watchdog: rank {} on {} made no progress for {} in phase \"{}\" (allowed: {})",
      options_.rank, options_.host, format_duration(silent), phase_, format_duration(allowed_));
  if (options_.board == nullptr) return report;
  const std::string last = options_.board->behind();
  if (!last.empty()) report += "; " + last;
  const std::string who = culprits(options_.board->flights(), now_seconds());
  if (!who.empty()) report += "; " + who;
  return report;
}

std::string Watchdog::death_report(const std::string& death) const {
  std::string report = fmt::format("choir: watchdog: rank {} on {} sees that {}", options_.rank,
                                   options_.host, death);
  const std::string who = culprits(options_.board->flights(), now_seconds());
  if (!who.empty()) report += "; " + who;
  return report + "; run the same command again to continue from the last checkpoint";
}

std::string Watchdog::failure_report(const std::string& failure) const {
  return fmt::format("choir: watchdog: rank {} on {} failed in phase \"{}\": {}", options_.rank,
                     options_.host, phase_, failure);
}

std::string Watchdog::still_text(double silent) const {
  std::string text =
      fmt::format("choir: rank {} on {} is still in phase \"{}\", {} (allowed: {})", options_.rank,
                  options_.host, phase_, format_duration(silent), format_duration(allowed_));
  const std::string behind = options_.board ? options_.board->behind() : "";
  return behind.empty() ? text : text + "; " + behind;
}

// The first rank writes the files for all ranks of its node, and later ranks write the same files
// again. A file system that hangs must not delay the report.
std::string Watchdog::write_flights() const {
  if (options_.directory.empty() || options_.board == nullptr) return {};
  constexpr double kForFiles = 2;
  const auto failure = std::make_shared<std::string>();
  const bool done = run_bounded(
      [failure, directory = options_.directory, flights = options_.board->flights(),
       exchange = options_.exchange] {
        *failure = write_tables(directory, flights);
        if (failure->empty() && exchange) *failure = exchange->leave(flights);
      },
      kForFiles);
  if (!done) return fmt::format("; writing to {} takes too long", options_.directory);
  if (!failure->empty()) return "; " + *failure;
  return fmt::format("; the last calls of each rank are in {}", options_.directory);
}

// The combined report of all nodes, or "" if another rank makes it or none can.
std::string Watchdog::whole_report() const {
  constexpr double kForFiles = 2;
  const auto report = std::make_shared<std::string>();
  const auto gather = [report, exchange = options_.exchange, seconds = options_.exchange_seconds] {
    if (!exchange->claim()) return;
    *report = "choir: watchdog: all nodes together: " +
              report_of_all(exchange->gather(seconds), now_seconds());
    exchange->keep(*report);
  };
  return run_bounded(gather, options_.exchange_seconds + kForFiles) ? *report : "";
}

// One rank reports for its node. The first of these ranks reports for all nodes and ends the job;
// the others wait for it.
void Watchdog::give_up(const std::string& report, bool all_know) {
  constexpr const char* kEnd = "; stopping all ranks with exit code 5";
  if (options_.exchange == nullptr || all_know) {
    options_.on_timeout(report + write_flights() + kEnd);
    return;
  }
  std::string last = report;
  if (options_.board->first_to_report()) {
    last += write_flights();
    options_.on_line(last);
    if (const std::string whole = whole_report(); !whole.empty()) {
      options_.on_timeout(whole + kEnd);
      return;
    }
  }
  constexpr double kMore = 3;
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> others(options_.exchange_seconds + kMore);
  if (wake_.wait_for(lock, others, [this] { return stop_; })) return;
  lock.unlock();
  options_.on_timeout(last + kEnd);
}

// The first poll that sees a failure leaves it to the main thread, which may be about to report the
// failure of its own call.
void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  bool polls = options_.checks_health;
  std::string failure;
  while (!stop_) {
    wake_.wait_for(lock, interval_for(usual_));
    if (options_.board) options_.board->tick();
    if (stop_) continue;
    if (polls) {
      const bool failed_before = !failure.empty();
      lock.unlock();
      failure = HealthCheck::first_failure();
      lock.lock();
      if (failed_before && !failure.empty() && !stop_) {
        const std::string report = failure_report(failure);
        polls = false, allowed_ = 0;
        lock.unlock();
        give_up(report, true);
        lock.lock();
      }
    }
    if (stop_ || allowed_ <= 0) continue;
    const double now = now_seconds(), silent = now - beaten_at_;
    const std::string death = options_.board ? options_.board->dead() : "";
    if (!death.empty() || silent > allowed_) {
      const std::string report = death.empty() ? silent_report(silent) : death_report(death);
      allowed_ = 0;
      lock.unlock();
      give_up(report, !death.empty());
      lock.lock();
    } else if (options_.still_seconds > 0 && now > mention_at_) {
      mention_at_ = now + options_.still_seconds;
      const std::string text = still_text(silent);
      lock.unlock();
      options_.on_line(text);
      lock.lock();
    }
  }
}

}  // namespace choir
