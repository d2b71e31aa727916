#pragma once
// Temporary memory for whole buckets and its communication: memory that ranks reduce or gather in
// place, a queue of operations in flight, and a ring of slots for buckets.
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/parallel/sharding/sharding.hpp"

namespace choir {

/// Zeroed memory that ranks reduce or gather in place. It is allocated by their communicator, or by
/// the device in a plan and for a single rank.
class CommMemory {
 public:
  CommMemory() = default;
  /// Collective.
  CommMemory(Device& device, Communicator& comm, std::size_t bytes);

  void* data() const { return shared_ ? shared_->data() : own_.data(); }
  std::size_t bytes() const { return shared_ ? shared_->bytes() : own_.bytes(); }
  bool shared() const { return shared_ && shared_->shared(); }

 private:
  Buffer own_;
  std::unique_ptr<CommBuffer> shared_;
};

/// Asynchronous operations of one communicator with their completion callbacks, in the order of
/// their starts, which is the order in which they must be waited for. Allocates nothing.
class CommQueue {
 public:
  /// Called once, after the operation has completed; must not start another one in this queue.
  struct Then {
    void (*run)(void* self, int bucket) = nullptr;
    void* self = nullptr;
    int bucket = -1;
  };

  /// Makes room and starts the operation that `begin()` returns (a CommRequest&). Returns a ticket
  /// above 0.
  template <class Begin>
  std::uint64_t start(Begin&& begin) {
    return start(begin, Then());
  }
  template <class Begin>
  std::uint64_t start(Begin&& begin, const Then& then) {
    if (next_ - oldest_ == kMost) finish(oldest_);
    progress();
    CommRequest& request = begin();
    entries_[next_ % kMost] = {&request, then};
    return next_++;
  }
  /// Completes the operation of this ticket and all operations before it.
  void finish(std::uint64_t ticket);
  void finish_all() { finish(next_ - 1); }
  /// MPI makes progress only inside its calls.
  void progress();

 private:
  static constexpr std::uint64_t kMost = Communicator::kMaxInFlight;
  struct Entry {
    CommRequest* request = nullptr;
    Then then;
  };
  std::array<Entry, kMost> entries_;
  std::uint64_t next_ = 1, oldest_ = 1;
};

/// Memory for buckets that are whole only temporarily. Buckets of the same shape (the blocks of a
/// model) take turns in a few slots; a bucket of unique shape has a slot to itself. Alignment gaps
/// of a slot are never written, so they stay zero.
class BucketRing {
 public:
  struct Slot {
    TensorView memory;         ///< [bucket size]
    int bucket = -1;           ///< bucket whose content it holds; -1: none
    int users = 0;             ///< in use while above 0
    std::uint64_t ticket = 0;  ///< ticket of the last operation started on it, in the queue
    std::uint64_t turn = 0;    ///< turn of its last claim
  };

  enum class Of { all, trained, packed };
  /// Collective over `comm`. There are `depth` slots for each shape, fewer if it has fewer buckets;
  /// only the buckets chosen by `which` have any. Buckets in use at the same time do not share
  /// slots: a bucket, the bucket of its frozen parameters, and those of its tiles.
  BucketRing(const ParameterSet& parameters, Of which, DType dtype, int depth, Device& device,
             Communicator& comm);

  /// The slot with the content of `bucket`, or nullptr if no slot has it.
  Slot* find(int bucket);
  /// Returns a slot for new content: the bucket's current one or the least recently used free one,
  /// after the operation in flight there has completed. Returns nullptr if all slots of its shape
  /// are in use.
  Slot* claim(int bucket, CommQueue& queue);
  std::size_t slots() const { return slots_.size(); }
  /// The index of a slot, below slots().
  std::size_t index(const Slot& slot) const {
    return static_cast<std::size_t>(&slot - slots_.data());
  }
  /// Invalidates the content of all slots.
  void forget();

  std::size_t bytes() const { return memory_.bytes(); }
  bool shared() const { return memory_.shared(); }

 private:
  CommMemory memory_;
  std::vector<Slot> slots_;
  std::vector<Range> slots_of_;  // range of slots_ of each bucket
  std::uint64_t turn_ = 0;
};

}  // namespace choir
