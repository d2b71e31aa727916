#pragma once
// Collectives on device memory by NCCL, which is looked for when the program runs: one communicator
// for each group of ranks, no two of them on one GPU.
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"

namespace choir {

struct NcclAvailability {
  std::string version;  ///< "2.28.9"; empty: it cannot be used
  std::string soname;
  std::string reason;  ///< why not; empty when it can
};
/// Local. `library`: a path, or empty for where the system's loader looks.
NcclAvailability nccl_availability(const std::string& library = {});

struct NcclOptions {
  double timeout_seconds = 300;  ///< for set-up, and for calls that NCCL prepares in the background
  std::string library;           ///< as above
  std::vector<int> ranks;        ///< of the world, for messages
};

/// Collective over `host`, which is duplicated for the control plane and not kept. CommError on
/// every rank, with the group, its ranks and NCCL's words, when set-up fails or takes too long.
/// `device` (cuda) must outlive the result.
///
/// Calls take device memory, run on an urgent stream of their own after what was queued on the
/// device's main stream before them, and the main stream continues after them when wait() (or the
/// blocking call) was called: the host waits for nothing but barrier(), so that calls can be
/// recorded in a graph. Failures of other ranks show at the next start, wait or test as CommError;
/// the communicator is broken then. Sums of Summation::tree exist for f32 (and whole numbers, whose
/// order does not matter): slices are exchanged and added in the tree by our own kernel; they keep
/// 32 MiB of device memory. DeckError for those of other types. NCCL matches send and receive by
/// their order, not by tags. There is no u16.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device& device,
                                                     const std::string& name,
                                                     const NcclOptions& options = {});

}  // namespace choir
