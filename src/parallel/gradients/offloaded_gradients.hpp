#pragma once
// Gradients that are kept in host memory which the device cannot read: windows of device memory
// through which they are read, and the sums over micro-batches that are stored there.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"

namespace choir {

/// Reads of pinned host memory through windows of device memory. They are copied by a stream of
/// their own, one ahead of the work on the one before it. Nothing is allocated after construction,
/// and a recorded step may contain reads.
class HostWindows {
 public:
  /// No read is longer than `bytes`.
  HostWindows(Device& device, std::size_t bytes);

  /// Starts a read, which follows the work that `stream` has been given so far. At most one other
  /// read may be started and not taken.
  void start(const Stream& stream, const void* from, std::size_t bytes);
  /// Takes the oldest started read. Work that is queued on `stream` from here on finds the bytes at
  /// the returned address until the read after the next one is started. The address has the
  /// remainder of `from` modulo kAlignment, because kernels choose the order of a sum by it.
  void* take(const Stream& stream);

  /// Takes `count` reads one after another: read(i) starts the i-th of them with start(), and
  /// work(i, address) queues the work on it.
  template <class Read, class Work>
  void each(const Stream& stream, std::int64_t count, const Read& read, const Work& work) {
    if (count > 0) read(0);
    for (std::int64_t i = 0; i < count; ++i) {
      if (i + 1 < count) read(i + 1);
      work(i, take(stream));
    }
  }

  std::size_t bytes() const { return memory_.bytes(); }

 private:
  static constexpr std::size_t kAlignment = 256, kWindows = 2;
  struct Window {
    std::unique_ptr<Event> free, filled;
    std::byte* at = nullptr;
  };
  std::byte* base(std::size_t window) const;

  std::size_t bytes_of_window_;
  Buffer memory_;
  SideStream copies_;
  std::array<Window, kWindows> windows_;
  std::size_t started_ = 0, taken_ = 0;
};

/// The sums of gradients over micro-batches in host memory: this rank's slices of buckets, and in
/// reproducible mode the levels of its tree. A slice that holds the sum of one micro-batch over
/// ranks is added to them by streams of its own, while the main stream computes the gradients of
/// other buckets. Bytes per micro-batch and rank over the link, where S is the size of the slices:
/// S to the host, and S from it for every sum that is added.
class OffloadedSums {
 public:
  static constexpr std::size_t kSum = 0;  ///< the sum of a step; 1 + l: level l of the tree

  /// `places`: pieces of device memory that slices come from.
  OffloadedSums(const ParameterStorage& storage, Device& device, std::size_t places);

  /// Waits on `stream` until nothing reads the slice in a place any more.
  void before_writing(const Stream& stream, std::size_t place) const;
  /// Adds `count` sums from `first` on, in this order, to `fresh`: this rank's slice of the bucket
  /// in device memory, which the work of `stream` so far has written. Must be called before store()
  /// also for no sum.
  void add(const Stream& stream, const Bucket& bucket, std::size_t first, std::size_t count,
           const TensorView& fresh);
  /// Waits on `stream` for the additions, for work on `fresh` that precedes another add().
  void join(const Stream& stream) const { stream.wait(added_); }
  /// A slice that is all-reduced over the replicas, and stored afterwards.
  struct Reduced {
    std::uint64_t ticket = 0;  ///< of the all-reduce in the caller's queue
    const Bucket* bucket = nullptr;
    TensorView slice{};
  };
  Reduced& reduced(std::size_t place) { return reduced_[place]; }
  /// Stores `fresh`, which is in `place`, as a sum.
  void store(const Bucket& bucket, std::size_t sum, const TensorView& fresh, std::size_t place);
  /// Work of `stream` from here on sees all sums.
  void finish(const Stream& stream);

  void add_to(MemoryPlan& plan) const { plan.add("offload windows", windows_.bytes()); }
  HostWindows& windows() { return windows_; }

 private:
  TensorView outside(const Bucket& bucket, std::size_t sum) const;

  const ParameterStorage* storage_;
  HostWindows windows_;
  SideStream sums_, stores_;
  Event ready_, added_;
  std::vector<std::unique_ptr<Event>> stored_;  // by place
  std::vector<bool> pending_;                   // stored_ was recorded since finish()
  std::size_t last_ = 0;                        // place of the last store
  std::vector<Reduced> reduced_;                // by place
};

}  // namespace choir
