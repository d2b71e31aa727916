#pragma once
// Which device each rank works on. Who gets which GPU is a pure function of what the ranks of a
// node see, and all ranks of the world agree on what kind of device they use.
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/device/cuda.hpp"

namespace choir {

/// A GPU in the list of one rank, by its place there.
struct VisibleGpu {
  std::string uuid;
  int numa_node = -1;  ///< -1: unknown
};
/// What one rank of a node contributes.
struct GpuSeeker {
  int rank = 0;                 ///< of the world, for messages
  std::vector<int> numa_nodes;  ///< of the cores that it may run on
  std::vector<VisibleGpu> gpus;
};
/// Distance of two NUMA nodes as the system counts (10: the same); out of range: unknown.
using NumaDistances = std::vector<std::vector<int>>;

/// Local, pure: for each rank the place of its GPU in its list. Every GPU once; the sum of
/// distances between a rank's cores and its GPU is the smallest possible, then lower ranks get the
/// GPUs listed earlier. Unknown distances count as equal. With `share` GPUs are given to as few
/// ranks each as possible; without, DeckError naming ranks, host and UUID when two ranks would be
/// on one GPU. Every rank must see at least one.
std::vector<int> assign_gpus(const std::vector<GpuSeeker>& ranks, const NumaDistances& distances,
                             const std::string& host, bool share);

struct DeviceRequest {
  std::string device = "auto";  ///< auto | cpu | cuda
  bool fp64 = false;            ///< the precision that is wanted stays on the CPU
  bool share = false;           ///< ranks may share a GPU
};
struct DeviceChoice {
  DeviceKind kind = DeviceKind::cpu;
  int ordinal = 0;            ///< of this rank's GPU
  std::string reason;         ///< why `auto` is what it is; empty when it was asked for
  bool shared_cards = false;  ///< some ranks of the world share a GPU
};
/// Collective over the world. The same kind on every rank; DeckError on every rank when what was
/// asked for cannot be had.
DeviceChoice choose_device(Mesh& mesh, const DeviceRequest& request);

}  // namespace choir
