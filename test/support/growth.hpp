#pragma once
// Growth of the time of an action with the size of its input.
#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>

#include "test/support/measured.hpp"

namespace choir::test {

/// Work that grows as the square of its input takes 64 times as long for eight times the input,
/// work that grows as n log n about 10 times. Tests compare with this factor between the two, which
/// leaves room for the noise of the machine.
inline constexpr double kEightfoldInput = 30;

/// Seconds of the fastest of three calls.
inline double least_seconds(const std::function<void()>& action) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    action();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    least = std::min(least, took.count());
  }
  return least;
}

/// The ratio of the times for eight times the input and for the input; it is printed beside the
/// bound.
inline double growth(const char* input, double eightfold, double once) {
  print_measured(input, eightfold / once, "times as long for 8 times the input", "below",
                 kEightfoldInput);
  return eightfold / once;
}

}  // namespace choir::test
