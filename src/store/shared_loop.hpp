#pragma once
// A loop whose iterations several threads take one at a time: a thread that begins early, and
// others that join when they would otherwise wait for its end.
#include <atomic>
#include <cstdint>
#include <functional>

namespace choir {

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
