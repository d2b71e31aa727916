#pragma once
// A communicator for device memory over one for host memory: chunks are copied to pinned memory,
// communicated there and copied back. Two chunks alternate, so that copies overlap the work of the
// host. It serves ranks that share a GPU and machines without NCCL, and is the baseline for NCCL.
// The floor of an all-reduce is one crossing of the bus in each direction plus the time of the
// host.
#include <memory>
#include <string>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"

namespace choir {

struct StagedOptions {
  /// Size of each of the two chunks in flight. It must be a multiple of
  /// MpiOptions::reduce_chunk_bytes, so that reductions are divided, and therefore summed, as in
  /// the host communicator.
  std::size_t slot_bytes = std::size_t{8} << 20;
  /// The host's part runs on a thread of its own while the caller continues. Otherwise (and if MPI
  /// does not grant MPI_THREAD_MULTIPLE) it runs inside wait().
  bool threaded = true;
};

/// Collective over `host`, which is duplicated; it and `device` must outlive the result.
///
/// Calls take device memory and run in order with the main stream of the device: they see the work
/// queued before them, and work queued after wait() (or after a blocking call) sees their result.
/// wait() blocks until the host's part is done; the last copy back to the device is left to the
/// stream. Results are bit for bit those of `host`, given `slot_bytes` (for blocks of
/// reduce_scatter also slot_bytes / size() must be such a multiple). Send and receive use the same
/// queue, so a pair must be called in an order in which blocking calls would not deadlock.
std::unique_ptr<Communicator> make_staged_communicator(Communicator& host, Device& device,
                                                       const std::string& name,
                                                       const StagedOptions& options = {});

}  // namespace choir
