// Reader of the log of a run: events, summary and fate.
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "choir/core/capped_text.hpp"
#include "choir/core/error.hpp"
#include "choir/core/regular_file.hpp"
#include "choir/core/text.hpp"
#include "choir/report/run_record.hpp"

namespace choir::report {
namespace {

constexpr std::size_t kStamp = 26;  // "[2026-11-22 04:20:07.850][" and then a letter and "] "

/// The number after the last `before` in `text`; -1 if there is none.
std::int64_t number_behind(std::string_view text, std::string_view before) {
  const std::size_t at = text.rfind(before);
  if (at == std::string_view::npos || at + before.size() >= text.size()) return -1;
  const char first = text[at + before.size()];
  if (first < '0' || first > '9') return -1;
  return std::strtoll(std::string(text.substr(at + before.size(), 18)).c_str(), nullptr, 10);
}

class LogReader {
 public:
  explicit LogReader(ReportedRun& run) : run_(run) {}

  void line(std::string_view line) {
    const bool stamped = line.size() > kStamp + 3 && line[0] == '[' && line[kStamp - 1] == '[' &&
                         line[kStamp - 2] == ']';
    if (in_summary_ && !stamped && line.starts_with("  ")) {
      run_.summary.emplace_back(line.substr(2));
      return;
    }
    in_summary_ = false;
    if (stamped)
      event(std::string(line.substr(1, 19)), line[kStamp], line.substr(kStamp + 3));
    else if (line == "summary:")
      summary();
  }
  void conclude() {
    run_.last_line = time_;
    if (failed_) {
      run_.fate = Fate::failed;
      run_.state = failure_ + ". The same command continues it from its last checkpoint.";
    } else if (!started_) {
      run_.state = "The log ends before the first step.";
    } else if (run_.summary.empty()) {
      run_.fate = Fate::silent;
    } else {
      run_.fate = stopped_ ? Fate::stopped : Fate::finished;
      if (stopped_) run_.state = stop_ + ". The same command continues it.";
    }
  }

 private:
  void event(std::string time, char level, std::string_view text) {
    time_ = time;
    const auto add = [&](EventKind kind, std::int64_t step) {
      if (step >= 0) step_ = step;
      run_.events.push_back({kind, time, step, std::string(text)});
    };
    std::string_view rest = text;
    if (take_prefix(rest, "resumed from ")) {
      resumed_ = number_behind(text, "(step ");
      resumed_words_ = text;
    } else if (take_prefix(rest, "ready after ")) {
      const bool again = started_ || resumed_ >= 0;
      started_ = true;
      stopped_ = failed_ = false;
      run_.summary.clear();
      if (resumed_ >= 0) text = resumed_words_;
      add(again ? EventKind::restart : EventKind::start, resumed_ >= 0 ? resumed_ : 0);
      resumed_ = -1;
    } else if (take_prefix(rest, "checkpoint of step ")) {
      add(EventKind::failed_save, number_behind(text, "checkpoint of step "));
    } else if (take_prefix(rest, "checkpoint ") && rest.find("/step_") != std::string_view::npos) {
      add(EventKind::save, number_behind(rest.substr(0, rest.find(" (")), "/step_"));
    } else if (take_prefix(rest, "stopping after step ")) {
      stopped_ = true;
      stop_ = text;
      stop_[0] = 'S';
      add(EventKind::stop, number_behind(text, "stopping after step "));
    } else if (level == 'E' && take_prefix(rest, "ended with exit code ")) {
      failed_ = true;
      failure_ = text;
      failure_[0] = 'E';
      add(EventKind::failure,
          rest.find(": step ") != std::string_view::npos ? number_behind(text, ": step ") : -1);
    } else if (level == 'W' || level == 'E') {
      add(EventKind::warning, rest.starts_with("step ") ? number_behind(text, "step ") : -1);
    }
  }
  void summary() {
    in_summary_ = true;
    run_.summary.clear();
    run_.events.push_back({EventKind::end, time_, step_, stopped_ ? "stopped" : "end"});
  }

  ReportedRun& run_;
  std::string time_;
  std::int64_t step_ = -1, resumed_ = -1;
  std::string resumed_words_, stop_, failure_;
  bool started_ = false, stopped_ = false, failed_ = false, in_summary_ = false;
};

}  // namespace

const char* name_of(EventKind kind) {
  constexpr const char* kNames[kEventKinds] = {"start",   "restart", "save",    "failed save",
                                               "warning", "stop",    "failure", "end"};
  return kNames[static_cast<int>(kind)];
}

const char* name_of(Fate fate) {
  constexpr const char* kNames[] = {"state unknown", "finished", "stopped",
                                    "failed",        "running",  "no end in its log"};
  return kNames[static_cast<int>(fate)];
}

bool read_log(const std::string& path, ReportedRun& run) {
  require_regular(path);
  constexpr std::size_t kMostMiB = 4096;
  std::ifstream file(path);
  if (!file) return false;
  if (const std::string excess = file_excess(path, kMostMiB); !excess.empty())
    throw DataError(fmt::format("'{}' {}", path, excess), "is it the log.txt of a run?");
  LogReader reader(run);
  for (std::string line; std::getline(file, line);) reader.line(line);
  reader.conclude();
  return true;
}

}  // namespace choir::report
