// Judgement of a run whose log has no end. The facts are: the holder of the lock of its log
// (RunDirectory keeps it while it trains), its host, the time of its last line, and the usual time
// between lines.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <filesystem>

#include "choir/core/clock.hpp"
#include "choir/core/process.hpp"
#include "choir/report/run_record.hpp"

namespace choir::report {
namespace {

enum class Lock { held, free, unknown };

Lock lock_of(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Lock::unknown;
  const bool free = flock(file, LOCK_SH | LOCK_NB) == 0;
  const Lock lock = free                   ? Lock::free
                    : errno == EWOULDBLOCK ? Lock::held
                                           : Lock::unknown;  // the file system has no locks
  close(file);
  return lock;
}

/// Seconds since the epoch of "2026-11-22 04:20:07", local time; NaN for other texts.
double seconds_of(const std::string& time) {
  std::tm local{};
  if (strptime(time.c_str(), "%Y-%m-%d %H:%M:%S", &local) == nullptr) return NAN;
  local.tm_isdst = -1;
  return static_cast<double>(std::mktime(&local));
}

/// Mean seconds between lines of the metrics; 0 if unknown.
double usual_gap(const ReportedRun& run) {
  const std::size_t lines = run.curve("dt").x.size();
  return lines == 0 ? 0 : run.stepping_seconds() / static_cast<double>(lines);
}

/// The watchdog writes the last calls of all ranks when it ends a run.
std::string flight_of(const std::string& log) {
  const std::filesystem::path folder = std::filesystem::path(log).parent_path() / "flight";
  std::error_code failed;
  return std::filesystem::is_directory(folder, failed)
             ? " The last calls of each rank are in " + folder.string() + "."
             : "";
}

}  // namespace

void judge_open_end(const std::string& log, const std::string& now, ReportedRun& run) {
  const Lock lock = lock_of(log);
  const double age = seconds_of(now) - seconds_of(run.last_line), gap = usual_gap(run);
  // There are evaluations, samples and saves between some lines.
  const double patience = 60 + 10 * gap;
  const std::string host = run.start.ranks.empty() ? "" : run.start.ranks[0].host;
  const std::string last = fmt::format("its last line was written at {}", run.last_line);
  if (lock == Lock::held) {
    run.fate = Fate::running;
    run.state = fmt::format("A process has its log open; {}", last);
    run.state +=
        age > patience ? fmt::format(", {} ago: it may be hanging.", format_duration(age)) : ".";
  } else if (lock == Lock::free && host == host_name()) {
    run.fate = Fate::silent;
    run.state =
        fmt::format("The log has no end and no process has it open: killed or crashed; {}.{}", last,
                    flight_of(log));
  } else if (age <= patience) {
    run.fate = Fate::running;
    run.state = fmt::format("It is probably running{}: the log has no end, and {}.",
                            host.empty() ? "" : " on " + host, last);
  } else {
    run.fate = Fate::silent;
    run.state = fmt::format("The log has no end and no lines since {}: killed or crashed.{}",
                            run.last_line, flight_of(log));
  }
}

}  // namespace choir::report
