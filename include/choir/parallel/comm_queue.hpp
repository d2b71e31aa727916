#pragma once
// Asynchronous operations of one communicator in the order of their starts, which is the order in
// which they must be waited for, and what is to be done when each is complete. Allocates nothing.
#include <array>
#include <cstdint>

#include "choir/comm/communicator.hpp"

namespace choir {

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
  std::uint64_t start(Begin&& begin, const Then& then = {}) {
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

}  // namespace choir
