#include "choir/parallel/schedule_drawing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "choir/core/error.hpp"
#include "choir/core/text.hpp"

namespace choir {
namespace {

std::string label_of(const Schedule& schedule, const Action& a) {
  const char letter = a.kind == ActionKind::forward           ? 'F'
                      : a.kind == ActionKind::backward_weight ? 'W'
                                                              : 'B';
  std::string label = fmt::format("{}{}", letter, a.micro_batch);
  if (schedule.shape.chunks > 1) label += static_cast<char>('a' + a.chunk % 26);
  return label;
}

/// Calls body(stage, action, its interval) for every computation.
template <class Body>
void each_computation(const Schedule& schedule, const Simulation& simulation, Body&& body) {
  for (std::size_t s = 0; s < schedule.actions.size(); ++s)
    for (std::size_t k = 0; k < schedule.actions[s].size(); ++k)
      if (const Action& a = schedule.actions[s][k]; !is_communication(a.kind))
        body(s, a, simulation.intervals[s][k]);
}

}  // namespace

std::string draw(const Schedule& schedule, const Simulation& simulation, int width) {
  CHOIR_CHECK(simulation.intervals.size() == schedule.actions.size() && width > 0,
              "{} timelines for {} stages, {} columns", simulation.intervals.size(),
              schedule.actions.size(), width);
  double shortest = std::numeric_limits<double>::infinity();
  std::size_t longest_label = 0;
  each_computation(schedule, simulation, [&](std::size_t, const Action& a, const Interval& t) {
    if (t.end > t.begin) shortest = std::min(shortest, t.end - t.begin);
    longest_label = std::max(longest_label, label_of(schedule, a).size());
  });
  // Columns of a unit of time.
  double scale = static_cast<double>(longest_label + 1) / shortest;
  if (simulation.makespan * scale > width) scale = width / simulation.makespan;
  const auto column = [&](double t) { return static_cast<std::size_t>(std::lround(t * scale)); };
  std::vector<std::string> rows(schedule.actions.size(),
                                std::string(column(simulation.makespan), '.'));
  each_computation(schedule, simulation, [&](std::size_t s, const Action& a, const Interval& t) {
    const std::size_t begin = column(t.begin), room = column(t.end) - begin;
    std::string label = label_of(schedule, a);
    if (label.size() > room) label.resize(std::min<std::size_t>(room, 1));
    if (room > longest_label + 1) label.resize(room, '-');
    label.resize(room, ' ');
    rows[s].replace(begin, room, label);
  });
  std::string text;
  const std::size_t digits = std::to_string(rows.size() - 1).size();
  for (std::size_t s = 0; s < rows.size(); ++s)
    text += fmt::format("{:>{}} {}\n", s, digits, rows[s]);
  std::vector<std::string> live;
  for (const int peak : simulation.peak_live) live.push_back(std::to_string(peak));
  return text + fmt::format("makespan {:.4g}, bubble {:.1f} %, live activations {}\n",
                            simulation.makespan, 100 * simulation.bubble_fraction(),
                            join(live, " "));
}

}  // namespace choir
