#include "choir/parallel/pipeline_times.hpp"

#include <array>

#include "choir/core/error.hpp"

namespace choir {

std::vector<ChunkCost> mean_costs(std::span<const ActionTime> times, int chunks) {
  struct Sum {
    double seconds = 0;
    int count = 0;
    double mean() const { return count > 0 ? seconds / count : 0; }
  };
  std::vector<std::array<Sum, kActionKinds>> sums(static_cast<std::size_t>(chunks));
  for (const ActionTime& t : times) {
    Sum& sum =
        sums[static_cast<std::size_t>(t.action.chunk)][static_cast<std::size_t>(t.action.kind)];
    sum.seconds += t.end - t.begin;
    ++sum.count;
  }
  std::vector<ChunkCost> costs;
  for (const auto& sum : sums) {
    const auto mean = [&](ActionKind kind) { return sum[static_cast<std::size_t>(kind)].mean(); };
    costs.push_back({.forward = mean(ActionKind::forward),
                     .backward = mean(ActionKind::backward),
                     .backward_input = mean(ActionKind::backward_input),
                     .backward_weight = mean(ActionKind::backward_weight)});
  }
  return costs;
}

std::vector<StageLoss> stage_losses(const Schedule& schedule, const std::vector<ChunkCost>& chunks,
                                    double makespan) {
  PipelineCosts costs = uniform_costs(schedule.shape, {});
  costs.chunks = chunks;
  const Simulation free = simulate(schedule, costs);
  std::vector<StageLoss> losses;
  for (std::size_t s = 0; s < free.busy.size(); ++s)
    losses.push_back(
        {.busy = free.busy[s], .bubble = free.idle(s), .exposed = makespan - free.makespan});
  return losses;
}

}  // namespace choir
