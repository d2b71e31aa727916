#include "src/train/loop/run_lock.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"

namespace choir {
namespace {

using Milliseconds = std::chrono::milliseconds;

/// "" where there is none. The file is opened anew each time: over NFS what is open may be old.
std::string last_sign(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The host and the process at the beginning of a sign: "node7 4711 0000000003".
std::string who_gave(const std::string& sign) {
  return sign.substr(0, sign.rfind(' '));
}

}  // namespace

RunLock::RunLock(const std::string& directory, const std::string& log, Options options)
    : directory_(directory), sign_(directory + "/in_use"), options_(std::move(options)) {
  file_ = open(log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) return;  // who opens the log will say why
  Lock lock = try_lock(options_.patience);
  const std::string sign = last_sign(sign_);
  const std::string who = who_gave(sign);
  const bool elsewhere = !sign.empty() && !who.starts_with(options_.host + " ");
  if (lock == Lock::held && !elsewhere) refuse("");
  if (elsewhere) {
    if (options_.say)
      options_.say(fmt::format("'{}' was left in use by {}: waiting for a sign of life of it",
                               directory_, who));
    if (lives(sign)) refuse(who);
    if (lock == Lock::held) lock = try_lock(options_.lease);
    if (lock == Lock::held) refuse(who);
  }
  thread_ = std::thread([this] { give_signs(); });
}

RunLock::~RunLock() {
  if (thread_.joinable()) {
    {
      const std::lock_guard guard(mutex_);
      ending_ = true;
    }
    ends_.notify_all();
    thread_.join();
  }
  if (file_ >= 0) close(file_);
}

RunLock::Lock RunLock::try_lock(double seconds) const {
  const double until = now_seconds() + seconds;
  while (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return Lock::none;
    if (now_seconds() > until) return Lock::held;
    std::this_thread::sleep_for(Milliseconds(20));
  }
  return Lock::mine;
}

bool RunLock::lives(const std::string& last) const {
  const double until = now_seconds() + 3 * options_.beat;
  while (now_seconds() < until) {
    std::this_thread::sleep_for(Milliseconds(100));
    const std::string sign = last_sign(sign_);
    if (sign.empty()) return false;  // it has just ended
    if (sign != last) return true;
  }
  return false;
}

void RunLock::refuse(const std::string& who) const {
  close(file_);
  throw StorageError(
      fmt::format("another run{} is using the run directory '{}'",
                  who.empty() ? "" : fmt::format(" ({})", who), directory_),
      fmt::format("wait until it ends (or stop it: touch {}/stop_now), or choose another run.dir",
                  directory_));
}

// In place, so that a full disk does not matter.
void RunLock::give_signs() {
  const std::string me = fmt::format("{} {}", options_.host, getpid());
  std::unique_lock guard(mutex_);
  for (int number = 0; !ending_; ++number) {
    if (number > 0 && who_gave(last_sign(sign_)) != me) return;  // another one has it now
    const int file = open(sign_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    const std::string sign = fmt::format("{} {:010}\n", me, number);
    if (file >= 0 && write(file, sign.data(), sign.size()) > 0 && number == 0)
      (void)!ftruncate(file, static_cast<off_t>(sign.size()));
    if (file >= 0) close(file);
    ends_.wait_for(guard, std::chrono::duration<double>(options_.beat), [&] { return ending_; });
  }
  std::error_code ignored;
  if (who_gave(last_sign(sign_)) == me) std::filesystem::remove(sign_, ignored);
}

}  // namespace choir
