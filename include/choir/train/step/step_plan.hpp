#pragma once
// What one step needs and does on one rank, as planned before it runs
// (choir/train/step/step_planner.hpp), and whether this machine has it.
#include <set>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/product.hpp"
#include "choir/train/step/step_traffic.hpp"

namespace choir {

struct StepPlan {
  MemoryPlan memory;
  std::size_t arena_bytes = 0;              ///< what the activations entry of `memory` says
  std::vector<std::size_t> arena_requests;  ///< for EngineOptions, where shapes mix in a pipeline
  /// The host copy that an asynchronous checkpoint makes; not part of `memory` unless added.
  std::size_t snapshot_bytes = 0;
  double flops = 0;                 ///< of one step on this rank, all micro-batches
  double repeated_flops = 0;        ///< of them those of recomputation: no progress of the model
  double bytes = 0;                 ///< touched by the ops of one step, caches ignored
  std::set<ops::Product> products;  ///< of steps and evaluations
  StepTraffic traffic{};            ///< of one step of this rank on each axis; seconds stay 0
  /// Hardware FLOPs utilisation over model FLOPs utilisation: 1 without recomputation.
  double hfu_over_mfu() const {
    return repeated_flops > 0 ? flops / (flops - repeated_flops) : 1.0;
  }
  bool operator==(const StepPlan&) const = default;
};

/// Local. Whether the host memory of this node also has room for the snapshots of its ranks.
bool snapshot_fits(const StepPlan& plan, int ranks_per_node, const Device& device);

/// Plans may use this part of a card that is not here: the driver keeps some for itself.
inline constexpr double kUsableOfCard = 0.97;
/// Bytes that plans may use of a card that is here: what is free less what libraries take at their
/// first calls (kernels that are loaded, handles, channels of NCCL), for which stand 768 MiB, or a
/// tenth of a small card. An estimate.
double free_for_plans(const Device& device);
/// Bytes of memory this machine has.
double node_memory();

/// Local. DeckError when the plans of the ranks of this node need more than its whole memory.
void require_memory(const StepPlan& plan, int ranks_per_node, const Device& device);

}  // namespace choir
