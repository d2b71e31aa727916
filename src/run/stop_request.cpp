#include "src/run/stop_request.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>

#include "src/core/quantities.hpp"

namespace choir {
namespace {

// Lock-free atomics are the only variables that a signal handler and another thread may both use;
// the handlers run in the SignalThread.
static_assert(std::atomic<int>::is_always_lock_free);
std::atomic<int> pending_save{0};
std::atomic<int> pending_terminate{0};
std::atomic<int> held{0};
std::atomic<int> at_once{0};
std::atomic<int> announces{0};
std::atomic<const std::atomic<bool>*> ended{nullptr};
static_assert(std::atomic<bool>::is_always_lock_free);
char announcement[512];  // not of the object, because a handler may outlast it

extern "C" void on_save(int) {
  pending_save = 1;
}
extern "C" void on_terminate(int number) {
  if (at_once != 0) {
    constexpr std::string_view kWords = "choir: stopped while starting: nothing to save\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kWords.data(), kWords.size());
  }
  if (pending_terminate.exchange(number) != 0 || at_once != 0) _exit(128 + number);
  const std::atomic<bool>* const over = ended;
  if (announces != 0 && (over == nullptr || !*over)) {
    [[maybe_unused]] const auto written =
        write(STDERR_FILENO, announcement, std::strlen(announcement));
  }
}

constexpr std::array<int, 3> kSignals{SIGUSR1, SIGTERM, SIGINT};

void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | SA_ONSTACK;  // without a SignalThread, any thread may run it
  action.sa_handler = handler;
  sigaction(number, &action, nullptr);
}

}  // namespace

void hold_stop_requests() {
  held = 1;
  handle(SIGUSR1, on_save);
}

void leave_mark(LaunchMark mark) {
  const char* const file = std::getenv("CHOIR_SAVED_FILE");
  if (file == nullptr || *file == 0) return;
  if (mark == LaunchMark::saved)
    std::ofstream(file) << "saved\n";
  else
    std::ofstream(std::string(file) + ".steps") << "steps\n";
}

StopRequest::StopRequest(double walltime, double margin, std::string stop_file)
    : deadline_(walltime > 0 ? now_seconds() + walltime : 0),
      walltime_(walltime),
      margin_(margin),
      stop_file_(std::move(stop_file)) {
  if (held == 0) pending_save = 0;
  pending_terminate = 0;
  at_once = 0;
  for (const int number : kSignals) handle(number, number == SIGUSR1 ? on_save : on_terminate);
}

StopRequest::~StopRequest() {
  announces = 0;
  for (const int number : kSignals)
    if (number != SIGUSR1 || held == 0) std::signal(number, SIG_DFL);
}

void StopRequest::obey_at_once() {
  at_once = 1;
}

void StopRequest::announce() {
  const std::string words = fmt::format(
      "choir: asked to stop: the run stops after this step, and saves if there is time; mpiexec "
      "may "
      "end it after a second{}\n",
      stop_file_.empty() ? "." : ". `touch " + stop_file_ + "` always waits for the save.");
  announcement[words.copy(announcement, sizeof announcement - 1)] = 0;
  announces = 1;
}

void StopRequest::silence_when(const std::atomic<bool>* over) {
  ended = over;
}

Stop StopRequest::poll(double expected_seconds) {
  at_once = 0;
  if (pending_terminate != 0)
    return pending_terminate == SIGINT ? Stop::interrupt : Stop::terminate;
  if (pending_save != 0) return Stop::user;
  if (deadline_ > 0 && now_seconds() + expected_seconds + margin_ > deadline_)
    return Stop::walltime;
  if (!stop_file_.empty() && access(stop_file_.c_str(), F_OK) == 0) {
    unlink(stop_file_.c_str());  // otherwise the next run would stop immediately
    return Stop::file;
  }
  return Stop::none;
}

std::string StopRequest::reason(Stop stop) const {
  switch (stop) {
    case Stop::none:
      return "";
    case Stop::drill:
      return "fault.stop_step";
    case Stop::file:
      return "stop file " + stop_file_;
    case Stop::walltime:
      return "walltime of " + format_duration(walltime_);
    case Stop::user:
      return "asked by SIGUSR1 (Ctrl-C to jobs/launch, or the end of the job's time is near)";
    case Stop::interrupt:
      return "stopped by Ctrl-C (SIGINT)";
    case Stop::terminate:
      return "stopped from outside (SIGTERM, which mpiexec sends on Ctrl-C)";
  }
  return "";
}

}  // namespace choir
