#include "choir/comm/communicator.hpp"

#include <algorithm>
#include <array>

#include "choir/core/error.hpp"

namespace choir {

std::size_t Communicator::check_exchange(std::span<const Message> messages, int tags) const {
  std::array<int, kMaxPeers> peers{};
  std::size_t known = 0, bytes = 0;
  for (const Message& m : messages) {
    CHOIR_CHECK(m.peer >= 0 && m.peer < size() && m.peer != rank(),
                "rank {} of {} exchanges with rank {}", rank(), name(), m.peer);
    CHOIR_CHECK(m.tag >= 0 && m.tag < tags, "tag {} on {}", m.tag, name());
    bytes += m.bytes;
    const auto end = peers.begin() + static_cast<std::ptrdiff_t>(known);
    if (std::find(peers.begin(), end, m.peer) != end) continue;
    CHOIR_CHECK(known < peers.size(), "exchange on {} with more than {} others", name(), kMaxPeers);
    peers[known++] = m.peer;
  }
  return bytes;
}

}  // namespace choir
