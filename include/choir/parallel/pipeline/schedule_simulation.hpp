#pragma once
// When everything in a pipeline schedule happens, given how long each piece takes: the clock of the
// planner, the proof that a schedule cannot deadlock, and what a measured timeline is compared
// with. A stage does its actions one after the other; a message starts when its end or ends are
// ready (see Exchange) and the wire between the two stages is free in its direction, occupies the
// wire for bytes / bandwidth, and arrives a latency later. Pure and local; time in any unit, here
// seconds.
#include <limits>
#include <string>
#include <vector>

#include "choir/parallel/pipeline/schedule.hpp"

namespace choir {

/// How long one chunk takes for one micro-batch. Backward is not always the sum of B and W.
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
  std::vector<ChunkCost> chunks;  ///< [virtual stages]: of PipelineShape::virtual_stage
  std::vector<Link> links;        ///< [stages]: between stages s and s + 1; of the last and 0
  double message_bytes = 0;       ///< of one activation or one gradient
};
/// Every chunk costs `chunk`, every link is `link`.
PipelineCosts uniform_costs(const PipelineShape& shape, const ChunkCost& chunk,
                            const Link& link = {}, double message_bytes = 0);

struct Interval {
  double begin = 0, end = 0;
};

struct Simulation {
  double makespan = 0;
  /// [stages][actions], as in the schedule. A communication lasts from when it is posted until the
  /// stage need not wait for it; under overlapped exchange it is the time on the wire.
  std::vector<std::vector<Interval>> intervals;
  std::vector<double> busy;    // [stages]: computing; the rest is idle
  std::vector<int> peak_live;  // [stages]: see peak_live()
  double idle(std::size_t stage) const { return makespan - busy[stage]; }
  /// Idle over total time of all stages: (p - 1) / (m + p - 1) for equal stages of 1F1B. (Papers
  /// also quote idle over busy time, (p - 1) / m.)
  double bubble_fraction() const;
};

/// For a schedule that passed `validate`. Throws Error for costs that do not fit the shape, are
/// negative or not finite, and, naming what each stage waits for, when the schedule deadlocks.
Simulation simulate(const Schedule& schedule, const PipelineCosts& costs);

/// Most activations each stage holds at once, by its list: see promised_live().
std::vector<int> peak_live(const Schedule& schedule);

/// A pipeline schedule as text: one row a stage, time to the right. Every computation as F, B or W
/// with its micro-batch (and chunk a, b, c ... if there are several), as long as it takes; '.' is
/// idle time:
///
///     0 F0 F1 ......B0----F2 B1----...B2----
///     1 ...F0 B0----F1 B1----F2 B2----......
///     makespan 12, bubble 25.0 %, live activations 2 1
///
/// The shortest computation gets the room of its label. If rows would pass `width` columns, time is
/// compressed and what no longer fits loses its number, then its mark.
std::string draw(const Schedule& schedule, const Simulation& simulation, int width = 160);

}  // namespace choir
