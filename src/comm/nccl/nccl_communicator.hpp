#pragma once
// Collectives on device memory by NCCL, which is loaded while the program runs. Each group of ranks
// has one communicator; no two ranks of a group use the same GPU.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"

namespace choir {

struct NcclAvailability {
  std::string version;  ///< "2.28.9"; empty if NCCL cannot be used
  std::string soname;
  std::string reason;  ///< why it cannot be used; otherwise empty
};
/// `library` is a path; if it is empty, the system's loader searches. Local.
NcclAvailability nccl_availability(const std::string& library = {});

struct NcclOptions {
  double timeout_seconds = 300;  ///< for set-up, and for calls that NCCL prepares in the background
  std::string library;           ///< as in nccl_availability()
  std::vector<int> ranks;        ///< world ranks, for messages
  int communicators = 1;         ///< number of communicators that this process uses on the GPU at
                                 ///< the same time
  bool register_memory = true;   ///< see make_nccl_block(), for allocate()
};

/// Collective over `host`, which is duplicated as the control communicator and not kept. Throws
/// CommError on every rank, with the group, its ranks and NCCL's text, if set-up fails or times
/// out. `device` (cuda) must outlive the result. The memory that NCCL takes at the first calls is
/// estimated by nccl_bytes() (nccl_needs.hpp).
///
/// Calls take device memory and run on an urgent stream of their own: after the work that was
/// queued on the device's main stream before them, and the main stream continues after them once
/// wait() (or the blocking call) was called. The host waits only in barrier(), so that calls can be
/// recorded in a graph. Failures of other ranks are thrown as CommError by the next start, wait or
/// test; the communicator is broken then. Sums with Summation::tree exist for f32 (and for
/// integers, whose order does not matter): slices are exchanged and added in the tree by choir's
/// own kernel, which needs 32 MiB of device memory. Other types are a DeckError. NCCL matches send
/// and receive by their order, not by tags. There is no u16.
///
/// Several communicators on one GPU: a kernel of NCCL occupies its multiprocessors until its peers
/// have arrived. Two operations whose kernels block each other on two GPUs in opposite order would
/// therefore deadlock. Two rules exclude that:
/// - Order of calls. The program must be free of deadlock even if every call of a rank is taken as
///   one that blocks until it is done, in program order. The callers ensure this: ranks of a group
///   make the same calls (all axes but the pipeline), and pipeline schedules are legal under
///   blocking exchange (validate() in parallel/pipeline/schedule.hpp). Then any additional order
///   that the driver imposes (kernels of two streams on one hardware queue, or the first launch of
///   a kernel, which may wait for the whole device) terminates too.
/// - Room. Streams of different communicators do not keep the order of the calls, so the kernels of
///   all calls in flight must fit on the GPU at once: the communicators together use at most three
///   quarters of the multiprocessors in equal parts (clusters of four kernels do not fill the
///   rest), with one thread block on each. A part is rounded down to a power of two, because NCCL
///   rounds the blocks of send and receive up to one. choir's own kernels never wait for a peer;
///   they only free their multiprocessors later.
/// From driver 12.9 on NCCL itself also starts the kernels in the order of the calls
/// (NCCL_LAUNCH_ORDER_IMPLICIT of NCCL 2.26, which the environment may set to 0).
/// The process makes all calls from one thread.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device& device,
                                                     const std::string& name,
                                                     const NcclOptions& options = {});

struct NcclBlock {
  std::shared_ptr<void> memory;  ///< nullptr: there is none, and the device has to allocate it
  int registrations = 0;         ///< number of communicators that it is registered with
};
/// A block of device memory that NCCL allocates and that is registered with each of the given
/// communicators (of make_nccl_communicator, for `device`) whose ranks all have one of this size,
/// so that collectives at equal offsets in it need no copies. It must be destroyed before the
/// communicators. There is none if nothing can be registered: NCCL is older than 2.19, or the block
/// is so small that NCCL would round it up by more than an eighth. Collective over each of the
/// communicators, in their order.
NcclBlock make_nccl_block(Device& device, std::span<Communicator* const> communicators,
                          std::size_t bytes);

}  // namespace choir
