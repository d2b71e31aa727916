#pragma once
// The table, CSV and JSON of `choir bench checkpoint`, and its bars. Pure.
#include <string>
#include <vector>

#include "choir/train/bench/bench_save.hpp"

namespace choir {

struct CheckpointReport {
  SaveBench run;
  std::string what;    ///< the deck, or "--bytes N"
  std::string layout;  ///< "" without a deck
  std::string device, folder, provenance;
};

/// What saves are held against: the median over the rounds, judged in the same round.
struct CheckpointBar {
  std::string name;  ///< "stall of total"
  std::string text;
  double value = 0, low = 0, high = 0, limit = 0;
  bool at_least = false;  ///< the value must not be below the limit; else it must be below
  bool judged = true;     ///< false: what it is held against is not known
  bool met() const { return at_least ? value >= limit : value < limit; }
};
std::vector<CheckpointBar> bars_of(const SaveBench& run);

std::string to_text(const CheckpointReport& report);
std::string to_csv(const CheckpointReport& report);
std::string to_json(const CheckpointReport& report);

}  // namespace choir
