#pragma once
// Plans the memory and the work of one step by running the real step on the null device. Local, on
// any machine, for any rank of any layout.
#include "src/device/null_device.hpp"
#include "src/run/step_plan.hpp"
#include "src/train/step/engine_options.hpp"

namespace choir {

/// `generate`: also plan for sampling text during training. `target`: the device to plan for;
/// nullptr: a CPU. The memory is that of the worst of shapes_of(options) or, if a pipeline has
/// several shapes in flight, of any mixture of them, provided that the engine gets
/// `arena_requests`; work and traffic are those of the largest shape. Without `snapshot` the
/// snapshot size, which needs a walk over all cuts of all tensors, stays 0. `record` receives the
/// work of the step (of the largest shape), for predictions.
StepPlan plan_step(const EngineOptions& options, const Layout& layout, int rank, int ranks_per_node,
                   bool generate, const Device* target = nullptr, bool snapshot = true,
                   WorkRecord* record = nullptr);

}  // namespace choir
