#pragma once
// A test of a time prints the measured value beside the bound; `make test` shows these lines.
#include <cstdio>

namespace choir::test {

inline void print_measured(const char* name, double value, const char* unit, const char* relation,
                           double bound) {
  std::printf("measured: %s: %.4g %s, %s %.4g %s\n", name, value, unit, relation, bound, unit);
  std::fflush(stdout);
}

}  // namespace choir::test
