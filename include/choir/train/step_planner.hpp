#pragma once
// The memory plan and the work of one step, from the real step run on the null device. Local, on
// any machine, for any rank of any layout.
#include "choir/train/engine.hpp"
#include "choir/train/step_traffic.hpp"

namespace choir {

struct StepPlan {
  MemoryPlan memory;
  std::size_t arena_bytes = 0;              ///< what the activations entry of `memory` says
  std::vector<std::size_t> arena_requests;  ///< for EngineOptions, where shapes mix in a pipeline
  /// Of the host copy that an asynchronous checkpoint makes; not part of `memory` unless added.
  std::size_t snapshot_bytes = 0;
  double flops = 0;           ///< of one step on this rank, all micro-batches
  double repeated_flops = 0;  ///< of them those of recomputation: no progress of the model
  double bytes = 0;           ///< touched by the ops of one step, caches ignored
  StepTraffic traffic{};      ///< of one step of this rank on each axis; seconds stay 0
  /// Hardware FLOPs utilisation over model FLOPs utilisation: 1 without recomputation.
  double hfu_over_mfu() const {
    return repeated_flops > 0 ? flops / (flops - repeated_flops) : 1.0;
  }
};

/// `generate`: also plan for sampling text while training. `target`: the device to plan for;
/// nullptr: a cpu. Memory is that of the worst of shapes_of(options) or, where a pipeline has
/// several in flight, of any mixture of them, given that the engine gets `arena_requests`; work and
/// traffic of the largest. Without `snapshot` its size, which takes a walk over all cuts of all
/// tensors, stays 0.
StepPlan plan_step(const EngineOptions& options, const Layout& layout, int rank, int ranks_per_node,
                   bool generate, const Device* target = nullptr, bool snapshot = true);

/// As plan_step() for a model that only evaluates batches of these shapes, and generates.
StepPlan plan_inference(const ModelInstance::Options& options, const Layout& layout, int rank,
                        const std::vector<BatchShape>& shapes, bool generate,
                        const Device* target = nullptr);

/// Local. Whether the host memory of this node also has room for the snapshots of its ranks.
bool snapshot_fits(const StepPlan& plan, int ranks_per_node, const Device& device);

/// The driver keeps some of a card for itself: plans may use this part of it.
inline constexpr double kUsableOfCard = 0.97;
/// Bytes of memory this machine has.
double node_memory();

/// Local. DeckError when the plans of the ranks of this node need more than its whole memory.
void require_memory(const StepPlan& plan, int ranks_per_node, const Device& device);

}  // namespace choir
