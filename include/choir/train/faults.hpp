#pragma once
// The deck's `fault` section: failures made on purpose, so that tests see what a user would see.
#include <string_view>

#include "choir/checkpoint/store.hpp"
#include "choir/train/deck.hpp"

namespace choir {

class Faults {
 public:
  Faults(const FaultSection& section, int rank) : section_(section), rank_(rank) {}

  /// Local, before step `step` (from 1) and when it enters a phase ("backward"): kills this
  /// process, sleeps for ever, or throws, if so asked.
  void before_step(std::int64_t step) const { at(step, "start"); }
  void in_phase(std::int64_t step, const char* phase) const { at(step, phase); }
  /// The number to divide losses by: NaN at fault.nan_step.
  double valid_tokens(std::int64_t step, double tokens) const;
  /// True where a stop request is to be raised.
  bool stop_at(std::int64_t step) const { return section_.stop_step == step; }
  /// For the checkpoint store: kills at the named instant, or refuses to write at disk_full_step.
  FaultHook in_save(const std::int64_t& current_step) const;

 private:
  void at(std::int64_t step, std::string_view place) const;

  FaultSection section_;
  int rank_;
};

}  // namespace choir
