#pragma once
// A loop whose iterations several threads take one at a time: one that has begun early, and others
// that come when they can do nothing else before it has ended.
#include <atomic>
#include <cstdint>
#include <functional>

namespace choir {

class SharedLoop {
 public:
  /// By one thread, with nobody in the loop. `body` does not throw, and gets each of 0 to n - 1
  /// once, from any thread.
  void begin(std::int64_t n, std::function<void(std::int64_t)> body);
  /// Takes iterations until none is left; others may still be at theirs.
  void help();
  /// The same with all OpenMP threads of this thread.
  void help_as_team();
  /// Returns when every iteration has ended: what they wrote is seen, what they read may change.
  void wait() const;
  bool ended() const { return done_.load(std::memory_order_acquire) == count_; }

 private:
  std::function<void(std::int64_t)> body_;
  std::int64_t count_ = 0;
  std::atomic<std::int64_t> next_{0}, done_{0};
};

}  // namespace choir
