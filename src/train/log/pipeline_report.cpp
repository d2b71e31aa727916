#include "choir/train/log/pipeline_report.hpp"

#include <fmt/core.h>

#include "choir/model/make_model.hpp"
#include "choir/parallel/schedule_simulation.hpp"

namespace choir {
namespace {

/// "embedding, blocks 0 to 3"
std::string units_of(const UnitRange& piece, int layers, const char* input) {
  const int first = std::max(piece.first, 1), last = std::min(piece.end() - 1, layers);
  std::string text = piece.contains(0) ? input : "";
  const auto add = [&](const std::string& unit) { text += (text.empty() ? "" : ", ") + unit; };
  if (first == last) add(fmt::format("block {}", first - 1));
  if (first < last) add(fmt::format("blocks {} to {}", first - 1, last - 1));
  if (piece.contains(layers + 1)) add("head");
  return text;
}

double flops_of(const UnitRange& piece, const ModelCosts& costs, int layers) {
  double sum = 0;
  for (int unit = piece.first; unit < piece.end(); ++unit)
    sum += unit == 0 ? costs.embedding : unit > layers ? costs.head : costs.layer;
  return sum;
}

/// Backward is two products for each of forward, and what is computed again.
ChunkCost chunk_cost(double forward, Recompute recompute) {
  const double again = recompute == Recompute::full ? forward : 0;
  return {.forward = forward,
          .backward = 2 * forward + again,
          .backward_input = forward + again,
          .backward_weight = forward};
}

}  // namespace

std::string pipeline_report(const EngineOptions& options, int stages) {
  if (stages == 1) return {};
  const auto layers = static_cast<int>(options.model.n_layer());
  const Schedule schedule = training_schedule(
      options.pipeline, stages, static_cast<int>(options.micro_batches), DeviceKind::cpu);
  const ModelCosts costs = unit_costs(options.model);
  const char* const input = options.model.is_speech() ? "subsampling" : "embedding";
  PipelineCosts times = uniform_costs(schedule.shape, {});
  std::string text;
  for (int stage = 0; stage < stages; ++stage) {
    std::string pieces;
    const ModelCut cut = cut_of(options.model, options.pipeline, stages, stage, false);
    for (int chunk = 0; chunk < schedule.shape.chunks; ++chunk) {
      const UnitRange& piece = cut.pieces[static_cast<std::size_t>(chunk)];
      pieces += (chunk == 0 ? "" : " | ") + units_of(piece, layers, input);
      times.chunks[static_cast<std::size_t>(schedule.shape.virtual_stage(stage, chunk))] =
          chunk_cost(flops_of(piece, costs, layers), options.model.recompute());
    }
    text += fmt::format("\n  stage {:<3} {}", stage, pieces);
  }
  return fmt::format(
      "pipeline: {} over {} stages, {} micro-batches; by FLOPs {:.1f} % of the time "
      "is bubble{}",
      name_of(schedule.kind), stages, options.micro_batches,
      100 * simulate(schedule, times).bubble_fraction(), text);
}

}  // namespace choir
