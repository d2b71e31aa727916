#pragma once
// A copy of this rank's pieces in host memory, so that they may change while they are written. The
// copy goes on beside training:
//
//   StoredTensor::device    pieces are copied                    and may change
//   none                    by take()                            when it returns
//   one the host sees       run by run, by whoever has time      when all runs are copied
//   another                 by a stream beside the main one      after copied()
//
// The floor is bytes read and written at the rate of memory, or of the link.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "choir/store/stored_tensor.hpp"

namespace choir {

class Snapshot {
 public:
  /// What a thread copies at a time.
  static constexpr std::size_t kRun = 1 << 20;

  /// `bytes`: at least bytes_of() of everything that is to be taken. `device`: of those pieces that
  /// are not the host's.
  Snapshot(Device& device, std::size_t bytes);

  static std::size_t bytes_of(const std::vector<StoredTensor>& tensors);
  std::size_t bytes() const { return memory_.bytes(); }

  /// Local. Copies what was queued on the main stream so far leaves in the pieces, or begins to:
  /// see above. The copy before is overwritten; nobody may read it any more.
  void take(const std::vector<StoredTensor>& tensors);
  /// Local. What take() has left to copy: this many runs, each by any thread.
  std::int64_t runs() const { return std::ssize(runs_); }
  void copy_run(std::int64_t i) const;
  /// What the tensors of another device may change after; nullptr when there are none.
  const Event* copied() const { return queued_ ? &*copied_ : nullptr; }
  /// By any thread, before it reads tensors(), of whose runs all are copied.
  void wait();
  /// The same tensors with pieces in this memory.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

 private:
  struct Run {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  static void copy(const Run& run);
  void queue(std::byte* to, const std::byte* from, std::size_t bytes);

  Device* device_;
  HostBuffer memory_;
  std::optional<SideStream> copies_;
  std::optional<Event> settled_, copied_;
  std::vector<StoredTensor> tensors_;
  std::vector<Run> runs_;  // of at most kRun bytes each
  bool queued_ = false;
};

}  // namespace choir
