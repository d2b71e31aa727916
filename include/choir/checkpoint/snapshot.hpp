#pragma once
// A copy of this rank's pieces in host memory, so that they may change while they are written.
// Memory of the host is copied when take() returns, by all threads and past the caches: the floor
// is bytes read and written at the rate of memory. Memory of a device is copied beside its main
// stream: take() only queues it.
#include <cstddef>
#include <optional>
#include <vector>

#include "choir/checkpoint/stored_tensor.hpp"

namespace choir {

class Snapshot {
 public:
  /// `bytes`: at least bytes_of() of everything that is to be taken. `device`: of those pieces that
  /// are not the host's.
  Snapshot(Device& device, std::size_t bytes);

  static std::size_t bytes_of(const std::vector<StoredTensor>& tensors);
  std::size_t bytes() const { return memory_.bytes(); }

  /// Local. Copies what was queued on the main stream so far leaves in the pieces. The copy before
  /// is overwritten; nobody may read it any more.
  void take(const std::vector<StoredTensor>& tensors);
  /// What the tensors may change after; nullptr when they may change now.
  const Event* copied() const { return queued_ ? &*copied_ : nullptr; }
  /// By any thread, before it reads tensors().
  void wait();
  /// The same tensors with pieces in this memory.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

 private:
  struct Run {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  void copy_runs() const;

  Device* device_;
  HostBuffer memory_;
  std::optional<SideStream> copies_;
  std::optional<Event> settled_, copied_;
  std::vector<StoredTensor> tensors_;
  std::vector<Run> runs_;  // of host memory, at most kRun bytes each
  bool queued_ = false;
};

}  // namespace choir
