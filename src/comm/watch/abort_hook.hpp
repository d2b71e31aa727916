#pragma once
// What is to be done, from any thread, when a process gives up while others of its threads may be
// stuck: NCCL's communicators are aborted, so that kernels that wait for a peer end.
#include <functional>

namespace choir {

/// Runs `action` on a thread of its own and waits at most `seconds`; false when it took longer. The
/// thread is left behind then: the action must own what it uses.
bool run_bounded(std::function<void()> action, double seconds);

class AbortHook {
 public:
  /// `action` must come back soon and work beside whatever else the process is doing.
  explicit AbortHook(std::function<void()> action);
  ~AbortHook();
  AbortHook(const AbortHook&) = delete;
  AbortHook& operator=(const AbortHook&) = delete;

  /// Runs all actions there are, as run_bounded().
  static bool run_all(double seconds);

 private:
  int number_;
};

}  // namespace choir
