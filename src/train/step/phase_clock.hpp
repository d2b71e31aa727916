#pragma once
// Time of a step by phase. Phases follow each other without gaps, so they add up to the step.
#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "src/core/quantities.hpp"

namespace choir {

enum class Phase { data, forward, backward, comm, optimizer, other };
inline constexpr int kPhases = 6;
const char* name_of(Phase phase);

/// A span that a device measured itself.
struct PhaseSpan {
  Phase phase = Phase::other;
  double seconds = 0;
};

class PhaseClock {
 public:
  /// Called when one span ends and the next begins, for traces and the watchdog's heartbeat. May be
  /// empty.
  using Listener = std::function<void(Phase ended, double start, double end, Phase next)>;

  PhaseClock() { begin(); }
  void listen(Listener listener) { listener_ = std::move(listener); }

  /// Begins a new step: all phases are zero, and time counts as `other`.
  void begin();
  /// Counts time as `phase` from now on.
  void enter(Phase phase);
  /// Moves `seconds` that were spent inside the current phase to another one.
  void transfer(double seconds, Phase to);
  /// Replaces the times since begin() by those that a device measured: spans in order, the last one
  /// ending at `end` (as now_seconds()). Nothing more is counted until begin().
  void replay(std::span<const PhaseSpan> spans, double end);
  /// Closes the step.
  void end() {
    if (!replayed_) enter(Phase::other);
  }

  Phase current() const { return current_; }
  double seconds(Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }
  double total() const;

 private:
  std::array<double, kPhases> seconds_{};
  Phase current_ = Phase::other;
  double since_ = 0;
  bool replayed_ = false;
  Listener listener_;
};

/// Phases of several steps added up.
struct PhaseTotals {
  std::array<double, kPhases> seconds{};
  std::int64_t steps = 0;

  void add(const PhaseClock& step);
  double of(Phase phase) const { return seconds[static_cast<std::size_t>(phase)]; }
  double total() const;
  /// Mean seconds per step, of a phase and of all phases.
  double mean(Phase phase) const { return steps > 0 ? of(phase) / static_cast<double>(steps) : 0; }
  double mean() const { return steps > 0 ? total() / static_cast<double>(steps) : 0; }
};

}  // namespace choir
