#pragma once
// Where buckets are whole for a while, and how they get there: memory that ranks reduce or gather
// in place, a queue of what is under way, and a ring of slots for buckets.
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/parallel/sharding/sharding.hpp"

namespace choir {

/// Zeroed memory that ranks reduce or gather in place. Their communicator gives it, or, where
/// nobody else touches it and in a plan, the device.
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

/// Asynchronous operations of one communicator in the order of their starts, which is the order in
/// which they must be waited for, and what is to be done when each is complete. Allocates nothing.
class CommQueue {
 public:
  /// Called once, after the operation has completed; must not start another.
  struct Then {
    void (*run)(void* self, int bucket) = nullptr;
    void* self = nullptr;
    int bucket = -1;
  };

  /// Starts what `begin()` returns (a CommRequest&), after making room for it. The ticket is above
  /// 0.
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
  /// Completes the operation of this ticket and all before it.
  void finish(std::uint64_t ticket);
  void finish_all() { finish(next_ - 1); }
  /// MPI moves only when asked.
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

/// Memory for buckets that are whole only for a while. Buckets of the same shape (the blocks of a
/// model) take turns in a few slots; one without its like has a slot to itself. Alignment gaps of a
/// slot are never written, so they stay zero.
class BucketRing {
 public:
  struct Slot {
    TensorView memory;         ///< [bucket size]
    int bucket = -1;           ///< whose content it has; -1: nobody's
    int users = 0;             ///< in use while above 0
    std::uint64_t ticket = 0;  ///< of the operation last started on it, in the queue
    std::uint64_t turn = 0;    ///< of its last claim
  };

  enum class Of { all, trained };
  /// Collective over `comm`. `depth` slots for each shape, fewer where it has fewer buckets; with
  /// Of::trained the buckets that are not trained have none. What is in use at the same time does
  /// not share slots: a bucket, that of its frozen parameters, those of its tiles.
  BucketRing(const ParameterSet& parameters, Of which, DType dtype, int depth, Device& device,
             Communicator& comm);

  /// The slot with the content of `bucket`; nullptr: none has it.
  Slot* find(int bucket);
  /// A slot for new content: the one it had, or the one unused for longest, after the operation in
  /// flight there has completed. nullptr: all slots of its shape are in use.
  Slot* claim(int bucket, CommQueue& queue);
  /// No slot has anything of use any more.
  void forget();

  std::size_t bytes() const { return memory_.bytes(); }
  bool shared() const { return memory_.shared(); }

 private:
  CommMemory memory_;
  std::vector<Slot> slots_;
  std::vector<Range> slots_of_;  // of each bucket, in slots_
  std::uint64_t turn_ = 0;
};

}  // namespace choir
