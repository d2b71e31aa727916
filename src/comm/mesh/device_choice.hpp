#pragma once
// The choice of each rank's device. The assignment of GPUs is a pure function of the GPUs that the
// ranks of a node see, and all ranks of the world agree on the kind of device.
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/run_choices.hpp"
#include "src/device/cuda.hpp"

namespace choir {

/// A GPU in the list of one rank.
struct VisibleGpu {
  std::string uuid;
  int numa_node = -1;  ///< -1: unknown
  std::string pci{};   ///< address of the card; slices of one card (MIG) have the same
};
/// The contribution of one rank of a node.
struct GpuSeeker {
  int rank = 0;                 ///< world rank, for messages
  std::vector<int> numa_nodes;  ///< NUMA nodes of the cores on which it may run
  std::vector<VisibleGpu> gpus;
};
/// Distances between NUMA nodes as reported by the system (10: the same node); an index out of
/// range means unknown.
using NumaDistances = std::vector<std::vector<int>>;

/// Returns for each rank the index of its GPU in its list. Every GPU is used once; the sum of the
/// distances between the ranks' cores and their GPUs is minimal; among equal sums, lower ranks get
/// GPUs listed earlier. Unknown distances count as equal. With `share`, each GPU is shared by as
/// few ranks as possible; without it, two ranks on one GPU are a DeckError with ranks, host and
/// UUID. Every rank must see at least one GPU. Local, pure.
std::vector<int> assign_gpus(const std::vector<GpuSeeker>& ranks, const NumaDistances& distances,
                             const std::string& host, bool share);

/// The ranks of this node with the GPUs that they see, which may be none. Collective over the node.
std::vector<GpuSeeker> gpu_seekers(Mesh& mesh, const cuda::Availability& found);

/// True if two ranks have the same card, be it the same GPU or two slices of one (MIG): NCCL
/// refuses both. `places` is the result of assign_gpus(). Pure.
bool share_a_card(const std::vector<GpuSeeker>& ranks, const std::vector<int>& places);

/// A warning if each rank of the node sees a single GPU and no two see the same card, as SLURM
/// arranges it for --gpus-per-task; "" otherwise. NCCL cannot use P2P between GPUs that a control
/// group hides from their neighbours. Pure.
std::string isolation_warning(const std::vector<GpuSeeker>& ranks, const std::string& host);
/// isolation_warning() of the first node that has one. Collective over the world.
std::string isolation_warning(Mesh& mesh);

struct DeviceRequest {
  RequestedDevice device = RequestedDevice::automatic;
  bool fp64 = false;   ///< a run in fp64 stays on the CPU
  bool share = false;  ///< ranks may share a GPU
};
struct DeviceChoice {
  DeviceKind kind = DeviceKind::cpu;
  int ordinal = 0;            ///< number of this rank's GPU
  std::string reason;         ///< why `auto` chose this kind; empty if the kind was requested
  bool shared_cards = false;  ///< some ranks of the world share a card
};
/// Collective over the world. Returns the same kind on every rank. Throws DeckError on every rank
/// if the requested device is not available.
DeviceChoice choose_device(Mesh& mesh, const DeviceRequest& request);

}  // namespace choir
