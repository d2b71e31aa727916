#pragma once
// Progress and remaining time of a long phase; silent for short phases. On a terminal the line
// renews itself; a log file receives a line at intervals.
#include <cstdint>
#include <string>
#include <string_view>

#include "choir/core/log.hpp"

namespace choir {

/// Renews its line on a terminal; in a log it writes a line at intervals. Silent for short phases.
class ProgressLine {
 public:
  /// In a log, lines are at least `interval` seconds apart, and the first one comes after the first
  /// interval.
  ProgressLine(Logger& log, std::string phase, double interval = 10);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  /// "evaluation: 34 %, 12.3 s left". `begun` is the part that was done before this object existed
  /// and says nothing about speed; `more` is appended on a terminal.
  void at(std::int64_t done, std::int64_t total, std::int64_t begun = 0,
          std::string_view more = {});
  /// True if at() would print now.
  bool due() const;
  /// Restarts the clock: earlier time does not count for the speed.
  void restart();

 private:
  Logger& log_;
  std::string phase_;
  double interval_, began_, said_, shown_;
};

}  // namespace choir
