#pragma once
// Two slots of pinned host memory between a device and the host communicator: while the host works
// on one, the other is on its way from or to the device. One stream for each direction.
#include <array>
#include <memory>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"

namespace choir {

class StagedPipe {
 public:
  /// Collective over `host`, in whose memory the slots are, so that its fast ways apply.
  StagedPipe(Communicator& host, Device& device, std::size_t slot_bytes);
  ~StagedPipe();
  StagedPipe(const StagedPipe&) = delete;
  StagedPipe& operator=(const StagedPipe&) = delete;

  std::size_t slot_bytes() const { return slot_bytes_; }

  /// Copies queued from here on see what happened before `ready`.
  void begin(const Event& ready);
  /// For each of `pieces`: fetch(down, slot, k) queues its copies to the host, work(slot, k) runs
  /// when they are done, store(up, slot, k) queues the copies back.
  template <class Fetch, class Work, class Store>
  void run(std::size_t pieces, const Fetch& fetch, const Work& work, const Store& store) {
    const auto start = [&](std::size_t k) {
      Slot& slot = slots_[k % 2];
      down_.stream().wait(*slot.stored);  // its last use
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
  // All of the memory, 2 * slot_bytes(), for a use of another kind: between claim(), which waits
  // until it is free, and release(), behind which copies from it may still be queued on up().
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
  /// The communicator's own memory, pinned; where the system refuses on some rank: nothing.
  bool pin_window(Communicator& host, std::size_t bytes);

  Device& device_;
  std::size_t slot_bytes_;
  std::unique_ptr<CommBuffer> window_;
  HostBuffer memory_;  // where the window could not be pinned
  SideStream down_, up_;
  std::array<Slot, 2> slots_;
};

}  // namespace choir
