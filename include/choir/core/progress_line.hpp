#pragma once
// How far a long phase is and how long it will take; silent for short ones.
#include <cstdint>
#include <string>

#include "choir/core/log.hpp"

namespace choir {

class ProgressLine {
 public:
  /// Says something at most every `interval` seconds, for the first time after as many.
  ProgressLine(Logger& log, std::string phase, double interval = 10);
  /// "evaluation: 34 %, 12.3 s left"
  void at(std::int64_t done, std::int64_t total);

 private:
  Logger& log_;
  std::string phase_;
  double interval_, began_, said_;
};

}  // namespace choir
