#include "choir/comm/watchdog.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "choir/comm/mpi_session.hpp"
#include "choir/core/clock.hpp"

namespace choir {
namespace {

void report_and_abort(const std::string& report) {
  std::fputs((report + "\n").c_str(), stderr);
  std::fflush(stderr);
  MpiSession::abort(ExitCode::communication);
}

}  // namespace

Watchdog::Watchdog(Options options) : options_(std::move(options)) {
  if (!on()) return;
  if (options_.host.empty()) options_.host = host_name();
  if (!options_.on_timeout) options_.on_timeout = report_and_abort;
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
  allowed_ = timeout_seconds > 0 ? timeout_seconds : options_.timeout_seconds;
}

void Watchdog::rest() {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  allowed_ = 0;
}

// Looks ten times per time-out rather than at the exact moment, so that a beat need not wake the
// thread.
void Watchdog::watch() {
  const auto interval =
      std::chrono::duration<double>(std::clamp(options_.timeout_seconds / 10, 0.005, 1.0));
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_.wait_for(lock, interval);
    const double silent = now_seconds() - beaten_at_;
    if (stop_ || allowed_ <= 0 || silent <= allowed_) continue;
    std::string report = fmt::format(
        "choir: watchdog: rank {} on {} made no progress for {} in phase \"{}\" (allowed: {})",
        options_.rank, options_.host, format_duration(silent), phase_, format_duration(allowed_));
    const std::string culprit = options_.board ? options_.board->behind() : "";
    if (!culprit.empty()) report += "; " + culprit;
    report += "; stopping all ranks with exit code 5";
    allowed_ = 0;
    lock.unlock();
    options_.on_timeout(report);
    lock.lock();
  }
}

}  // namespace choir
