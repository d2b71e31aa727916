#pragma once
// The memory and the work of one step on one rank, as planned before it runs
// (choir/train/step/step_planner.hpp), and checks that this machine has that memory.
#include <set>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/product.hpp"
#include "choir/train/step/step_traffic.hpp"

namespace choir {

struct StepPlan {
  MemoryPlan memory;
  std::size_t arena_bytes = 0;              ///< bytes of the activations entry of `memory`
  std::vector<std::size_t> arena_requests;  ///< for EngineOptions, if a pipeline mixes shapes
  /// The host copy that an asynchronous checkpoint makes; not part of `memory` unless added.
  std::size_t snapshot_bytes = 0;
  double flops = 0;                 ///< of one step on this rank, all micro-batches
  double repeated_flops = 0;        ///< part of `flops` that is recomputation
  double bytes = 0;                 ///< bytes touched by the ops of one step, ignoring caches
  std::set<ops::Product> products;  ///< of steps and evaluations
  StepTraffic traffic{};            ///< of one step of this rank on each axis; seconds stay 0
  /// Hardware FLOPs utilisation over model FLOPs utilisation: 1 without recomputation.
  double hfu_over_mfu() const {
    return repeated_flops > 0 ? flops / (flops - repeated_flops) : 1.0;
  }
  bool operator==(const StepPlan&) const = default;
};

/// True if the host memory of this node also has room for the snapshots of its ranks. Local.
bool snapshot_fits(const StepPlan& plan, int ranks_per_node, const Device& device);

/// Fraction of the memory of a card elsewhere that plans may use; the driver reserves the rest.
inline constexpr double kUsableOfCard = 0.97;
/// Bytes that plans may use on a card in this machine: the free memory, less an estimate of what
/// libraries take at their first calls (kernels, handles, NCCL channels): 768 MiB, or a tenth of a
/// small card.
double free_for_plans(const Device& device);
/// Bytes of memory of this machine.
double node_memory();

/// Throws DeckError if the plans of the ranks of this node exceed its memory. Local.
void require_memory(const StepPlan& plan, int ranks_per_node, const Device& device);

}  // namespace choir
