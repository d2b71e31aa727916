#include "src/train/step/phase_clock.hpp"

#include <numeric>

namespace choir {

const char* name_of(Phase phase) {
  static constexpr std::array<const char*, kPhases> kNames{"data", "forward",   "backward",
                                                           "comm", "optimizer", "other"};
  return kNames[static_cast<std::size_t>(phase)];
}

void PhaseClock::begin() {
  seconds_ = {};
  current_ = Phase::other;
  since_ = now_seconds();
  replayed_ = false;
}

void PhaseClock::enter(Phase phase) {
  const double now = now_seconds();
  seconds_[static_cast<std::size_t>(current_)] += now - since_;
  if (listener_) listener_(current_, since_, now, phase);
  current_ = phase;
  since_ = now;
}

void PhaseClock::replay(std::span<const PhaseSpan> spans, double end) {
  seconds_ = {};
  double at = end;
  for (const PhaseSpan& span : spans) at -= span.seconds;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const auto& [phase, seconds] = spans[i];
    seconds_[static_cast<std::size_t>(phase)] += seconds;
    const Phase next = i + 1 < spans.size() ? spans[i + 1].phase : Phase::other;
    if (listener_) listener_(phase, at, at + seconds, next);
    at += seconds;
  }
  current_ = Phase::other;
  since_ = end;
  replayed_ = true;
}

void PhaseClock::transfer(double seconds, Phase to) {
  seconds_[static_cast<std::size_t>(current_)] -= seconds;
  seconds_[static_cast<std::size_t>(to)] += seconds;
}

void PhaseTotals::add(const PhaseClock& step) {
  for (std::size_t i = 0; i < kPhases; ++i) seconds[i] += step.seconds(static_cast<Phase>(i));
  ++steps;
}

double PhaseTotals::total() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

double PhaseClock::total() const {
  return std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
}

}  // namespace choir
