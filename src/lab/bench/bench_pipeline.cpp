#include "src/lab/bench/bench_pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace choir {
namespace {

constexpr std::size_t kCostWords = sizeof(ChunkCost) / sizeof(double);

/// The step with the median makespan (the shorter of the two in the middle).
std::size_t median_step(const std::vector<double>& makespans) {
  std::vector<std::size_t> order(makespans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return makespans[a] < makespans[b]; });
  return order[(order.size() - 1) / 2];
}

/// Reorders [stages][chunks], as ranks hold them, by virtual stage.
std::vector<ChunkCost> by_virtual_stage(const PipelineShape& shape,
                                        const std::vector<ChunkCost>& by_rank) {
  std::vector<ChunkCost> costs(by_rank.size());
  for (int stage = 0; stage < shape.stages; ++stage)
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      costs[static_cast<std::size_t>(shape.virtual_stage(stage, chunk))] =
          by_rank[static_cast<std::size_t>(stage * shape.chunks + chunk)];
  return costs;
}

}  // namespace

double PipelineBench::idle() const {
  double busy = 0;
  for (const StageLoss& stage : stages) busy += stage.busy;
  return 1 - busy / (makespan * static_cast<double>(stages.size()));
}

double PipelineBench::bubble() const {
  double busy = 0;
  for (const StageLoss& stage : stages) busy += stage.busy;
  return 1 - busy / (simulated * static_cast<double>(stages.size()));
}

double PipelineBench::even_bubble() const {
  const double fill = shape.stages - 1;
  return fill / (fill + shape.micro_batches * shape.chunks);
}

std::string to_string(const PipelineBench& b) {
  if (b.empty()) return "";
  std::string text = fmt::format(
      "pipeline {}, {} stages x {} pieces, {} micro-batches, {} exchange; time stamps of the "
      "median step of rank 0's pipeline\n"
      "  stage     busy ms  bubble ms exposed ms   makespan {:.3f} ms; {:.3f} ms simulated with "
      "the measured costs and free messages\n",
      b.schedule, b.shape.stages, b.shape.chunks, b.shape.micro_batches, b.exchange,
      1e3 * b.makespan, 1e3 * b.simulated);
  for (std::size_t s = 0; s < b.stages.size(); ++s)
    text += fmt::format("  {:<7} {:>9.3f}  {:>9.3f}  {:>9.3f}\n", s, 1e3 * b.stages[s].busy,
                        1e3 * b.stages[s].bubble, 1e3 * b.stages[s].exposed);
  return text +
         fmt::format(
             "  idle {:.1f} % measured, {:.1f} % simulated; (p - 1) / (m v + p - 1) is {:.1f} %\n",
             100 * b.idle(), 100 * b.bubble(), 100 * b.even_bubble());
}

PipelineRecorder::PipelineRecorder(Engine& engine, std::size_t steps) : engine_(engine) {
  makespans_.reserve(steps);
  costs_.reserve(steps * static_cast<std::size_t>(engine.schedule().shape.chunks));
}

void PipelineRecorder::record() {
  const std::span<const ActionTime> times = engine_.action_times();
  double last = 0;
  for (const ActionTime& t : times) last = std::max(last, t.end);
  makespans_.push_back(last);
  const auto costs = mean_costs(times, engine_.schedule().shape.chunks);
  costs_.insert(costs_.end(), costs.begin(), costs.end());
}

PipelineBench PipelineRecorder::gather(Mesh& mesh) const {
  const Schedule& schedule = engine_.schedule();
  const auto chunks = static_cast<std::size_t>(schedule.shape.chunks);
  Communicator& stages = mesh.host_along(Axis::pipeline);
  std::vector<double> makespans = makespans_;
  stages.all_reduce(makespans.data(), makespans.size(), DType::f64, ReduceOp::max);
  const std::size_t step = median_step(makespans);
  std::vector<ChunkCost> costs(chunks * static_cast<std::size_t>(stages.size()));
  std::copy_n(costs_.begin() + static_cast<std::ptrdiff_t>(step * chunks), chunks,
              costs.begin() + static_cast<std::ptrdiff_t>(chunks) * stages.rank());
  stages.all_gather(costs.data(), chunks * kCostWords, DType::f64);
  double makespan = makespans[step];
  mesh.world().broadcast(&makespan, sizeof makespan, 0);
  mesh.world().broadcast(costs.data(), costs.size() * sizeof(ChunkCost), 0);
  PipelineBench bench{.schedule = std::string(name_of(schedule.kind)),
                      .exchange = std::string(name_of(schedule.exchange)),
                      .shape = schedule.shape,
                      .makespan = makespan,
                      .stages = {},
                      .chunks = by_virtual_stage(schedule.shape, costs)};
  bench.stages = stage_losses(schedule, bench.chunks, makespan);
  bench.simulated = makespan - bench.stages.front().exposed;
  return bench;
}

}  // namespace choir
