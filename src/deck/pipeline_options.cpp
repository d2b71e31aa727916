#include "choir/deck/pipeline_options.hpp"

#include <algorithm>
#include <mutex>

#include "choir/models/family.hpp"
#include "src/parallel/pipeline/layer_partition.hpp"
#include "src/parallel/pipeline/pipeline_executor.hpp"

namespace choir {

ModelCut cut_of(const ModelConfig& model, const PipelineOptions& options, int stages, int stage,
                bool separate_tied) {
  ModelCut cut{.pieces = {}, .separate_tied = separate_tied};
  if (stages == 1 && options.virtual_stages == 1) return cut;
  UnitCosts costs = model.family().unit_costs(model);
  for (std::size_t unit = 0; unit < costs.size(); ++unit)
    if (std::ssize(costs) > options.forward_only && static_cast<int>(unit) < options.forward_only)
      costs[unit] /= 3;
  const std::vector<UnitRange> ranges = partition_layers(costs, stages, options.virtual_stages);
  for (int chunk = 0; chunk < options.virtual_stages; ++chunk)
    cut.pieces.push_back(ranges[static_cast<std::size_t>(chunk * stages + stage)]);
  return cut;
}

int stage_of_unit(const ModelConfig& model, const PipelineOptions& options, int stages, int unit) {
  const auto has = [&](int stage) {
    const ModelCut cut = cut_of(model, options, stages, stage, false);
    return std::ranges::any_of(cut.pieces, [&](const UnitRange& r) { return r.contains(unit); });
  };
  int stage = 0;
  while (stage + 1 < stages && !has(stage)) ++stage;
  return stage;
}

std::shared_ptr<const Schedule> training_schedule(const PipelineOptions& options, int stages,
                                                  int micro_batches, DeviceKind device) {
  static std::mutex mutex;
  static std::shared_ptr<const Schedule> last;
  const bool alone = stages == 1 && options.virtual_stages == 1;
  const ScheduleKind kind = alone ? ScheduleKind::one_f_one_b : options.schedule;
  const PipelineShape shape{
      .stages = stages, .micro_batches = micro_batches, .chunks = options.virtual_stages};
  const Exchange exchange = exchange_for(device);
  const std::lock_guard lock(mutex);
  if (!last || last->kind != kind || last->exchange != exchange || last->shape != shape) {
    Schedule made = make_schedule(kind, shape, exchange);
    if (stages > 1 && exchange == Exchange::overlapped) made.channels = kMessageChannels;
    validate(made);
    last = std::make_shared<const Schedule>(std::move(made));
  }
  return last;
}

}  // namespace choir
