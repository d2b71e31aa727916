#pragma once
// The share of a GPU that NCCL takes: thread blocks, which the planner of a step leaves to it, and
// device memory, which NCCL allocates when a communicator is first used. The memory is an estimate:
// the sizes are those of NCCL 2.28 (its defaults for buffers and protocols), the number of channels
// is the limit that choir gives, and one number was measured by others. Pure, needs no CUDA.
#include <cstddef>

namespace choir {

/// Maximum number of thread blocks of a kernel of one of `communicators` that work on a GPU at the
/// same time; see "Room" in nccl_communicator.hpp. It is a power of two, because NCCL rounds the
/// blocks of send and receive up to one.
int nccl_blocks(int multiprocessors, int communicators);

/// One communicator as a rank uses it.
struct NcclUse {
  int ranks = 1;
  int nodes = 1;          ///< on which they are
  int blocks = 32;        ///< see nccl_blocks(): NCCL uses no more channels
  int peers = 0;          ///< ranks with which this one exchanges messages
  bool multicast = true;  ///< the switches between the GPUs of a node can reduce (Hopper and later)
};
/// Bytes of device memory of a communicator after its first calls:
/// - rings and trees: 12 MiB for each channel and neighbour (10 for the receiver's buffers of three
///   protocols, 2 for the sender's counters), and 20 MiB more for each channel between nodes;
/// - multicast within a node: 2 MiB for each rank and channel, of which there are at most 16;
/// - messages: 14 MiB for each peer and channel, whose number is a power of two, and 128 MiB that
///   all messages between nodes share;
/// - 8 MiB for queues and descriptions.
/// NVIDIA/nccl issues 864 and 1685 have measurements; a unit test compares them with the result.
std::size_t nccl_bytes(const NcclUse& use);

/// NCCL's own blocks of memory, which alone can be windows, are multiples of this.
std::size_t nccl_granularity(int major);
/// True if a block is large enough to be one of NCCL's: rounding it up wastes at most an eighth.
bool is_block_of_nccl(std::size_t bytes, std::size_t granularity);

/// The bytes by which rounding enlarges a block that is one of NCCL's; 0 for others.
std::size_t nccl_rounding(std::size_t bytes, std::size_t granularity);

/// Scratch memory of the sums in a tree of one communicator.
inline constexpr std::size_t kTreeScratchBytes = std::size_t{32} << 20;

}  // namespace choir
