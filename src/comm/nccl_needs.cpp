#include "src/comm/nccl_needs.hpp"

#include <algorithm>
#include <bit>

namespace choir {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// The most thread blocks that NCCL uses by itself.
constexpr int kMostOfNccl = 32;

// Memory is mapped in pages of 2 MiB, so one direction of a channel to a neighbour takes 10 MiB for
// the receiver (buffers of 4 MiB for the protocol Simple, 0.5 for LL and 4.69 for LL128) and 2 MiB
// for the sender; on cards that read from their peers the large buffer is the sender's.
constexpr std::size_t kPerNeighbour = 12 * kMiB;
/// A channel whose neighbours are on other nodes has all buffers for both directions.
constexpr std::size_t kPerRemoteChannel = 20 * kMiB;
/// Send and receive, per channel and peer: 8 H100 took 3.28 GB for 7 peers and 32 channels
/// (NVIDIA/nccl issue 1685).
constexpr std::size_t kPerPeer = 14 * kMiB;
/// Buffers that all messages to other nodes share.
constexpr std::size_t kSharedByMessages = 128 * kMiB;
/// Multicast within a node: two buffers of 1 MiB for each rank and channel, of which there are 16.
constexpr int kMulticastChannels = 16;
constexpr std::size_t kPerMulticast = 2 * kMiB;
/// Queues of work and descriptions of the channels.
constexpr std::size_t kFixed = 8 * kMiB;

}  // namespace

int nccl_blocks(int multiprocessors, int communicators) {
  if (communicators <= 1) return kMostOfNccl;
  const int share = std::clamp(multiprocessors * 3 / 4 / communicators, 1, kMostOfNccl);
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(share)));
}

// Memory that the switches can reduce is allocated in units of the recommended granularity of
// multicast, 512 MiB on H100; other cards use pages of 2 MiB.
std::size_t nccl_granularity(int major) {
  return major >= 9 ? 512 * kMiB : 2 * kMiB;
}

bool is_block_of_nccl(std::size_t bytes, std::size_t granularity) {
  const std::size_t waste = (granularity - bytes % granularity) % granularity;
  return bytes > 0 && waste <= bytes / 8;
}

std::size_t nccl_rounding(std::size_t bytes, std::size_t granularity) {
  if (!is_block_of_nccl(bytes, granularity)) return 0;
  return (granularity - bytes % granularity) % granularity;
}

std::size_t nccl_bytes(const NcclUse& use) {
  if (use.ranks <= 1) return 0;
  const auto channels = static_cast<std::size_t>(use.blocks);
  const auto messages = std::bit_ceil(channels);
  const auto neighbours = static_cast<std::size_t>(std::min(2, use.ranks - 1));
  const int on_node = (use.ranks + use.nodes - 1) / use.nodes;
  std::size_t bytes = kFixed + channels * neighbours * kPerNeighbour;
  if (use.nodes > 1) bytes += channels * kPerRemoteChannel;
  if (use.multicast && on_node > 2)
    bytes += std::min<std::size_t>(channels, kMulticastChannels) *
             static_cast<std::size_t>(on_node) * kPerMulticast;
  bytes += messages * static_cast<std::size_t>(use.peers) * kPerPeer;
  if (use.peers > 0 && use.nodes > 1) bytes += kSharedByMessages;
  return bytes;
}

}  // namespace choir
