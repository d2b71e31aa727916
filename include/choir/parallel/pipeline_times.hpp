#pragma once
// What the measured times of a pipeline say: how long each chunk takes, and what a stage loses to
// the bubble and to messages. Pure and local.
#include <span>
#include <vector>

#include "choir/parallel/pipeline_executor.hpp"
#include "choir/parallel/schedule_simulation.hpp"

namespace choir {

/// Mean durations of the computations of each chunk of a stage, for PipelineCosts; 0 where there is
/// none.
std::vector<ChunkCost> mean_costs(std::span<const ActionTime> times, int chunks);

/// Seconds of one stage.
struct StageLoss {
  double busy = 0;     ///< computing
  double bubble = 0;   ///< idle even if messages took no time
  double exposed = 0;  ///< the rest of `makespan`: communication that nothing hides, and jitter
};
/// `chunks` are the mean costs of all virtual stages, gathered from the stages; `makespan` the
/// longest run of a stage. Exposed time is not cut at 0: it is negative by as much as the mean
/// hides of the durations.
std::vector<StageLoss> stage_losses(const Schedule& schedule, const std::vector<ChunkCost>& chunks,
                                    double makespan);

}  // namespace choir
