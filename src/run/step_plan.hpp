#pragma once
// The memory, the work and the traffic of one step on one rank, as planned before it runs, and the
// least time that it can take. Checks whether this machine has the memory.
//
// The floor of a step is the work that no implementation avoids, at rates measured on the same
// machine:
//
//   FLOPs   6 N_matmul per token: forward, input gradient and weight gradient of every product
//           (N_matmul: weights of the linear layers and the head, V C once whether tied or not),
//           and 12 D per visible (query, key) pair and head: two products forward, four backward,
//           of which causal attention sees T (T + 1) / 2 pairs.
//   bytes   AdamW reads gradient, master and two moments and writes the latter three (7 words a
//           parameter, 28 B in fp32; 24 B with bf16 masters; 8 B less with bf16 moments) and the
//           16-bit copy (30 B); the gradient norm reads each gradient once more.
//
//   floor = FLOPs / GEMM rate + bytes / memory rate
//
// Speech: three times the forward FLOPs of products, convolutions and attention, for frames that
// are not padding.
//
// Activations are not counted because they may stay in caches, nor is communication because it may
// be hidden. Kernels that skip masked work, or parameters that fit in a cache, can beat the floor
// slightly.

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/parallel/sharding/sharding.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {

namespace cuda {
struct Card;
}

/// Indexed by Axis.
using StepTraffic = std::array<CommTraffic, kAxes>;

struct StepCommunicator {
  Axis axis;  ///< the axis whose traffic it carries
  Communicator* communicator;
};
/// All communicators that a step may use, each once: those of the axes, on the data axis also that
/// of all replicas and the groups of hybrid sharding, and on the pipeline axis those of its kinds
/// of messages. Local.
std::vector<StepCommunicator> step_communicators(Mesh& mesh, const Sharding& sharding);

/// Resets the counts of these communicators. Local.
void reset_traffic(Mesh& mesh, const Sharding& sharding);
/// Their counts since the reset. Local.
StepTraffic traffic_of(Mesh& mesh, const Sharding& sharding);

/// The counted work of a phase of a step.
struct PhaseWork {
  std::string phase;
  double flops = 0, bytes = 0;
  bool operator==(const PhaseWork&) const = default;
};

struct StepPlan {
  MemoryPlan memory;
  std::size_t arena_bytes = 0;              ///< bytes of the activations entry of `memory`
  std::vector<std::size_t> arena_requests;  ///< for EngineOptions, if a pipeline mixes shapes
  /// The host copy that an asynchronous checkpoint makes; not part of `memory` unless added.
  std::size_t snapshot_bytes = 0;
  double flops = 0;                 ///< of one step on this rank, all micro-batches
  double repeated_flops = 0;        ///< part of `flops` that is recomputation
  double bytes = 0;                 ///< bytes touched by the ops of one step, ignoring caches
  std::vector<PhaseWork> phases;    ///< parts of both; empty for a device that orders its work
  std::set<ops::Product> products;  ///< of steps and evaluations
  StepTraffic traffic{};            ///< of one step of this rank on each axis; seconds stay 0
  /// Hardware FLOPs utilisation over model FLOPs utilisation: 1 without recomputation.
  double hfu_over_mfu() const {
    return repeated_flops > 0 ? flops / (flops - repeated_flops) : 1.0;
  }
  bool operator==(const StepPlan&) const = default;
};

/// Adds an estimate of NCCL's memory to the plan of a rank of `mesh`, which may be a planned one:
/// its buffers, which it allocates when they are first used, and the rounding of the blocks that it
/// allocates for others. Of `card` only the number of multiprocessors and the architecture are
/// read. Adds nothing if the options leave nothing to NCCL. Local.
void add_nccl(StepPlan& plan, const Mesh& mesh, const DeviceTransport& transport,
              const cuda::Card& card);

/// True if the host memory of this node also has room for the snapshots of its ranks. Local.
bool snapshot_fits(const StepPlan& plan, int ranks_per_node, const Device& device);

/// Fraction of the memory of a card elsewhere that plans may use; the driver reserves the rest.
inline constexpr double kUsableOfCard = 0.97;
/// Bytes that plans may use on a card in this machine: the free memory, less an estimate of what
/// libraries take at their first calls (kernels, handles): 768 MiB, or a tenth of a small card. The
/// buffers of NCCL are part of the plan (add_nccl).
double free_for_plans(const Device& device);
/// Bytes of memory of this machine.
double node_memory();

/// Throws DeckError if the plans of the ranks of this node exceed its memory. Local.
void require_memory(const StepPlan& plan, int ranks_per_node, const Device& device);

/// The work of one rank in one step.
struct StepWork {
  double gemm_flops = 0;
  double attention_flops = 0;
  double optimizer_bytes = 0;
  double norm_bytes = 0;

  double flops() const { return gemm_flops + attention_flops; }
  double bytes() const { return optimizer_bytes + norm_bytes; }
};

struct StepRates {
  double flops_per_second = 0;  ///< of a large product in the compute type, per rank
  double bytes_per_second = 0;  ///< of a large copy or update in place, read + written, per rank
};

/// The work of updating `parameters` parameters, without FLOPs.
StepWork update_work(const Precision& precision, std::int64_t parameters);

double floor_seconds(const StepWork& work, const StepRates& rates);

}  // namespace choir
