#pragma once
// A copy of this rank's pieces in host memory, so that they may change while the copy is written to
// disk. The copy is made in the background of training:
//
//   StoredTensor::device    pieces are copied                    and may change
//   nullptr                 by take()                            when it returns
//   host-visible            run by run, by any thread            when all runs are copied
//   other                   by a stream beside the main one      after copied()
//
// The lower bound of its time is bytes read and written at the rate of memory, or of the link.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <vector>

#include "src/store/stored_tensor.hpp"

namespace choir {

class Snapshot {
 public:
  /// Bytes that a thread copies at a time.
  static constexpr std::size_t kRun = 1 << 20;

  /// `bytes`: at least bytes_of() of the tensors of every take(). `device`: that of the pieces
  /// outside host memory.
  Snapshot(Device& device, std::size_t bytes);

  static std::size_t bytes_of(const std::vector<StoredTensor>& tensors);
  std::size_t bytes() const { return memory_.bytes(); }

  /// Local. Copies the pieces in the state after all work queued on the main stream so far, or
  /// begins to: see above. It overwrites the previous copy, which nobody may read any more.
  void take(const std::vector<StoredTensor>& tensors);
  /// Local. The number of runs that take() left to copy; any thread may copy each one.
  std::int64_t runs() const { return std::ssize(runs_); }
  void copy_run(std::int64_t i) const;
  /// The event after which tensors of another device may change; nullptr if there are none.
  const Event* copied() const { return queued_ ? &*copied_ : nullptr; }
  /// Called by any thread before it reads tensors(), after all runs have been copied.
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

// A loop whose iterations several threads take one at a time: a thread that begins early, and
// others that join when they would otherwise wait for its end.

class SharedLoop {
 public:
  /// Called by one thread while no thread is in the loop. `body` must not throw; it gets each of 0
  /// to n - 1 once, from any thread.
  void begin(std::int64_t n, std::function<void(std::int64_t)> body);
  /// Takes iterations until none is left; other threads may still execute theirs.
  void help();
  /// The same with all OpenMP threads of this thread.
  void help_as_team();
  /// Returns after every iteration has ended: their writes are visible, and their inputs may
  /// change.
  void wait() const;
  bool ended() const { return done_.load(std::memory_order_acquire) == count_; }

 private:
  std::function<void(std::int64_t)> body_;
  std::int64_t count_ = 0;
  std::atomic<std::int64_t> next_{0}, done_{0};
};

}  // namespace choir
