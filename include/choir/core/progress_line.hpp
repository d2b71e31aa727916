#pragma once
// How far a long phase is and how long it will take; silent for short ones. On a terminal a line
// that renews itself, in a file a line now and then.
#include <cstdint>
#include <string>
#include <string_view>

#include "choir/core/log.hpp"

namespace choir {

class ProgressLine {
 public:
  /// A line of the log at most every `interval` seconds, for the first time after as many.
  ProgressLine(Logger& log, std::string phase, double interval = 10);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  /// "evaluation: 34 %, 12.3 s left". `begun`: what was done before this line began and tells
  /// nothing about speed; `more` stands behind it on a terminal.
  void at(std::int64_t done, std::int64_t total, std::int64_t begun = 0,
          std::string_view more = {});
  /// at() would say something now.
  bool due() const;
  /// The phase begins now: what came before does not count.
  void restart();

 private:
  Logger& log_;
  std::string phase_;
  double interval_, began_, said_, shown_;
};

}  // namespace choir
