#pragma once
// The pinned memory between a device and the host communicator, and exchanges of messages through
// it.
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"

namespace choir {

/// Two slots of pinned memory: while the host works on one, the other is copied from or to the
/// device. There is one stream for each direction.
class StagedPipe {
 public:
  /// Collective over `host`, which allocates the slots, so that its fast paths apply.
  StagedPipe(Communicator& host, Device& device, std::size_t slot_bytes);
  ~StagedPipe();
  StagedPipe(const StagedPipe&) = delete;
  StagedPipe& operator=(const StagedPipe&) = delete;

  std::size_t slot_bytes() const { return slot_bytes_; }

  /// Copies queued from here on see all work before `ready`.
  void begin(const Event& ready);
  /// For each of `pieces`: fetch(down, slot, k) queues its copies to the host, work(slot, k) runs
  /// when they are done, store(up, slot, k) queues the copies back.
  template <class Fetch, class Work, class Store>
  void run(std::size_t pieces, const Fetch& fetch, const Work& work, const Store& store) {
    const auto start = [&](std::size_t k) {
      Slot& slot = slots_[k % 2];
      down_.stream().wait(*slot.stored);  // the last use of the slot
      fetch(down_.stream(), slot.data, k);
      slot.fetched->record(down_.stream());
    };
    if (pieces > 0) start(0);
    for (std::size_t k = 0; k < pieces; ++k) {
      Slot& slot = slots_[k % 2];
      if (k + 1 < pieces) start(k + 1);
      slot.fetched->synchronize();
      work(slot.data, k);
      store(up_.stream(), slot.data, k);
      slot.stored->record(up_.stream());
    }
  }
  // Use of the whole memory, 2 * slot_bytes(), for another purpose: between claim(), which waits
  // until it is free, and release(), after which copies from it may still be queued on up().
  std::byte* memory() const { return slots_[0].data; }
  const Stream& down() const { return down_.stream(); }
  const Stream& up() const { return up_.stream(); }
  void claim() {
    for (const Slot& slot : slots_) slot.stored->synchronize();
  }
  void release() {
    for (const Slot& slot : slots_) slot.stored->record(up_.stream());
  }
  /// Marks the end of everything stored.
  void end(Event& done) { done.record(up_.stream()); }

 private:
  struct Slot {
    std::byte* data = nullptr;
    std::unique_ptr<Event> fetched, stored;
  };
  /// Uses the communicator's own memory, pinned. Returns false if the system refuses on some rank.
  bool pin_window(Communicator& host, std::size_t bytes);

  Device& device_;
  std::size_t slot_bytes_;
  std::unique_ptr<CommBuffer> window_;
  HostBuffer memory_;  // used if the window could not be pinned
  SideStream down_, up_;
  std::array<Slot, 2> slots_;
};

/// Exchanges of device memory. Each peer has a lane for each direction, in which chunks pass one
/// after the other through two halves of pinned memory while other lanes do the same. The size of a
/// chunk does not depend on the other messages, so both ends divide a message alike.
class StagedExchange {
 public:
  /// Borrows all arguments.
  StagedExchange(Communicator& host, Device& device, StagedPipe& pipe);
  /// Returns when all has been sent and received; copies back to the device are queued.
  void run(std::span<const Message> messages);

 private:
  enum class State { idle, copying, travelling };
  /// Memory and state of one chunk.
  struct Half {
    std::byte* data = nullptr;
    std::unique_ptr<Event> copied;
    State state = State::idle;
    Message piece;
    std::byte* target = nullptr;  ///< destination on the device, for a receive
    ExchangeRequest* request = nullptr;
  };
  static constexpr std::size_t kLanes = 2 * Communicator::kMaxPeers;
  struct Lane {
    int peer = -1;  ///< -1: not used by this exchange
    bool send = false;
    std::size_t message = 0, offset = 0;  ///< the first part that has not begun
    std::uint64_t begun = 0, passed = 0;  ///< numbers of chunks; passed: through MPI
    std::array<Half, 2> halves;
    Half& half(std::uint64_t piece) { return halves[piece % 2]; }
  };

  void assign_lanes(std::span<const Message> messages);
  /// Moves to the first message of this lane that has bytes left; false at the end.
  static bool more(Lane& lane, std::span<const Message> messages);
  /// Returns true if there was progress.
  bool advance(Lane& lane, std::span<const Message> messages);
  bool begin(Lane& lane, std::span<const Message> messages);
  void post(Half& half);

  Communicator& host_;
  StagedPipe& pipe_;
  std::size_t piece_bytes_;
  std::array<Lane, kLanes> lanes_;
};

}  // namespace choir
