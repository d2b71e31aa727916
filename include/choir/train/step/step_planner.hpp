#pragma once
// The memory plan and the work of one step, from the real step run on the null device. Local, on
// any machine, for any rank of any layout.
#include "choir/device/work_journal.hpp"
#include "choir/train/step/engine.hpp"
#include "choir/train/step/step_plan.hpp"

namespace choir {

/// `generate`: also plan for sampling text while training. `target`: the device to plan for;
/// nullptr: a cpu. Memory is that of the worst of shapes_of(options) or, where a pipeline has
/// several in flight, of any mixture of them, given that the engine gets `arena_requests`; work and
/// traffic of the largest. Without `snapshot` its size, which takes a walk over all cuts of all
/// tensors, stays 0. `record`: gets what the step does (of the largest shape), for predictions.
StepPlan plan_step(const EngineOptions& options, const Layout& layout, int rank, int ranks_per_node,
                   bool generate, const Device* target = nullptr, bool snapshot = true,
                   WorkRecord* record = nullptr);

/// As plan_step() for a model that only evaluates batches of these shapes, ...
StepPlan plan_inference(const ModelInstance::Options& options, const Layout& layout, int rank,
                        const std::vector<BatchShape>& shapes, const Device* target = nullptr);
/// ... or does this `work`.
StepPlan plan_inference(const ModelInstance::Options& options, const Layout& layout, int rank,
                        const std::function<void(ModelInstance&)>& work,
                        const Device* target = nullptr);

}  // namespace choir
