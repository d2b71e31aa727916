#pragma once
// The timeline of a pipeline schedule for given durations of the pieces: the clock of the planner,
// the proof that a schedule cannot deadlock, and the reference for measured timelines. A stage
// performs its actions one after the other. A message starts when its end or ends are ready (see
// Exchange) and the link between the two stages is free in its direction, occupies the link for
// bytes / bandwidth, and arrives a latency later. If the schedule has channels and its exchange is
// overlapped, exchanges of a channel are performed in the order in which they were posted: one ends
// with its last message, a message needs the exchanges of both its ends, and messages of different
// channels do not share the link. Pure and local; time in any unit, here seconds.
#include <limits>
#include <string>
#include <vector>

#include "choir/parallel/pipeline/schedule.hpp"

namespace choir {

/// Durations of one chunk for one micro-batch. Backward is not always the sum of B and W.
struct ChunkCost {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
};

struct Link {
  double latency = 0;
  double bytes_per_second = std::numeric_limits<double>::infinity();
};

struct PipelineCosts {
  std::vector<ChunkCost> chunks;  ///< [virtual stages], indexed by PipelineShape::virtual_stage
  std::vector<Link> links;        ///< [stages]: between stages s and s + 1; the last entry between
                                  ///< the last stage and 0
  double message_bytes = 0;       ///< size of one activation or one gradient
};
/// Every chunk costs `chunk`, every link is `link`.
PipelineCosts uniform_costs(const PipelineShape& shape, const ChunkCost& chunk,
                            const Link& link = {}, double message_bytes = 0);

struct Interval {
  double begin = 0, end = 0;
};

struct Simulation {
  double makespan = 0;
  /// [stages][actions], as in the schedule. A communication lasts from its posting until the stage
  /// need not wait for it; under overlapped exchange it is the time on the link.
  std::vector<std::vector<Interval>> intervals;
  std::vector<double> busy;    // [stages]: computing; the rest is idle
  std::vector<int> peak_live;  // [stages]: see peak_live()
  double idle(std::size_t stage) const { return makespan - busy[stage]; }
  /// Idle time divided by total time of all stages: (p - 1) / (m + p - 1) for equal stages of 1F1B.
  /// (Papers also quote idle over busy time, (p - 1) / m.)
  double bubble_fraction() const;
};

/// Simulates a schedule that passed `validate`. Throws Error for costs that do not fit the shape,
/// are negative or not finite, and when the schedule deadlocks; the message then names the wait of
/// each stage.
Simulation simulate(const Schedule& schedule, const PipelineCosts& costs);

/// The most activations that each stage holds at once according to its list; see promised_live().
std::vector<int> peak_live(const Schedule& schedule);

/// Draws a pipeline schedule as text: one row per stage, time to the right. A computation is shown
/// as F, B or W with its micro-batch (and chunk a, b, c ... if there are several) and is as wide as
/// it is long; '.' is idle time:
///
///     0 F0 F1 ......B0----F2 B1----...B2----
///     1 ...F0 B0----F1 B1----F2 B2----......
///     makespan 12, bubble 25.0 %, live activations 2 1
///
/// The shortest computation is as wide as its label. If rows would exceed `width` columns, time is
/// compressed; labels that no longer fit lose their number first, then their letter.
std::string draw(const Schedule& schedule, const Simulation& simulation, int width = 160);

}  // namespace choir
