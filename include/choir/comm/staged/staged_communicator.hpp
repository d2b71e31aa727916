#pragma once
// A communicator for device memory over one for host memory: pieces are copied to pinned memory,
// communicated there and copied back, two of them in turns, so that copies hide behind the work of
// the host. It serves ranks that share a GPU and machines without NCCL, and is the yardstick for
// NCCL. The floor of an all-reduce is one crossing of the bus each way, beside the time of the
// host.
#include <memory>
#include <string>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"

namespace choir {

struct StagedOptions {
  /// One of the two pieces under way. A multiple of MpiOptions::reduce_chunk_bytes, so that
  /// reductions are cut, and so summed, as the host communicator cuts them.
  std::size_t slot_bytes = std::size_t{8} << 20;
  /// The host's part runs on a thread of its own, beside what the caller goes on to do. Otherwise
  /// (and where MPI grants no MPI_THREAD_MULTIPLE) it runs inside wait().
  bool threaded = true;
};

/// Collective over `host`, which is duplicated; it and `device` must outlive the result.
///
/// Calls take device memory and run in order with the main stream of the device: they see what was
/// queued before them, and what is queued after wait() (or after a blocking call) sees their
/// result. wait() waits for the host's part; the last copy back to the device it leaves to the
/// stream. Results are bit for bit those of `host`, given `slot_bytes` (blocks of reduce_scatter:
/// while slot_bytes / size() is such a multiple too). Send and receive go through the same queue,
/// so a pair must be called in an order in which blocking calls do not wait for each other.
std::unique_ptr<Communicator> make_staged_communicator(Communicator& host, Device& device,
                                                       const std::string& name,
                                                       const StagedOptions& options = {});

}  // namespace choir
