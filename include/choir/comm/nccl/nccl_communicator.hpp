#pragma once
// Collectives on device memory by NCCL, which is looked for when the program runs. There is one
// communicator for each group of ranks, no two of which are on the same GPU.
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
  int communicators = 1;         ///< that this process has on the GPU and uses at the same time
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
///
/// Several communicators on one GPU. A kernel of NCCL holds its multiprocessors until its peers
/// have come, so that two operations whose kernels get in each other's way on two GPUs, the other
/// way round on each, would wait for ever. That cannot happen under two rules:
/// - The order of calls. Take every call of a rank for one that blocks until it is done, in the
///   order of the program: nobody may wait for ever even then. The callers see to that: ranks of a
///   group run the same calls (all axes but the pipeline), and schedules of a pipeline are legal
///   under blocking exchange (validate() in parallel/pipeline/schedule.hpp). Then whatever the
///   driver puts in an order of its own accord, be it kernels of two streams on one hardware queue
///   or the first launch of a kernel, which may wait for the whole device, comes to an end.
/// - Room. Streams of different communicators do not keep the order of the calls, so the kernels of
///   all that are in flight must fit on the GPU at once: each communicator takes its part of three
///   quarters of the multiprocessors at most (clusters of four kernels do not fill the rest), one
///   thread block on each. Kernels of ours never wait for a peer; they only make room late.
/// The process makes all calls from one thread.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device& device,
                                                     const std::string& name,
                                                     const NcclOptions& options = {});

}  // namespace choir
