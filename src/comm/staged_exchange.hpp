#pragma once
// Exchanges of device memory over a host communicator: a lane for each peer and direction, in which
// pieces go one after the other through two halves of pinned memory, beside those of other lanes.
// Pieces are as large whatever else is exchanged, so that both ends cut alike.
#include <array>
#include <memory>
#include <span>

#include "choir/comm/communicator.hpp"
#include "src/comm/staged_pipe.hpp"

namespace choir {

class StagedExchange {
 public:
  /// Borrows all three.
  StagedExchange(Communicator& host, Device& device, StagedPipe& pipe);
  /// Returns when all has been sent and received; copies back to the device are queued.
  void run(std::span<const Message> messages);

 private:
  enum class State { idle, copying, travelling };
  /// Memory of one piece, and how far it is.
  struct Half {
    std::byte* data = nullptr;
    std::unique_ptr<Event> copied;
    State state = State::idle;
    Message piece;
    std::byte* target = nullptr;  ///< on the device, of a receive
    ExchangeRequest* request = nullptr;
  };
  struct Lane {
    int peer = -1;  ///< -1: not used by this exchange
    bool send = false;
    std::size_t message = 0, offset = 0;  ///< what has not been begun
    std::uint64_t begun = 0, passed = 0;  ///< pieces; passed: through MPI
    std::array<Half, 2> halves;
    Half& half(std::uint64_t piece) { return halves[piece % 2]; }
  };

  void assign_lanes(std::span<const Message> messages);
  /// Moves to the first message of this lane that has bytes left; false at the end.
  static bool more(Lane& lane, std::span<const Message> messages);
  /// Whether something happened.
  bool advance(Lane& lane, std::span<const Message> messages);
  bool begin(Lane& lane, std::span<const Message> messages);
  void post(Half& half);

  Communicator& host_;
  StagedPipe& pipe_;
  std::size_t piece_bytes_;
  std::array<Lane, 2 * Communicator::kMaxPeers> lanes_;
};

}  // namespace choir
