#pragma once
// What is to be done, from any thread, when a process gives up while others of its threads may be
// stuck: NCCL's communicators are aborted, so that kernels that wait for a peer end.
#include <functional>

namespace choir {

class AbortHook {
 public:
  /// `action` must come back soon and work beside whatever else the process is doing.
  explicit AbortHook(std::function<void()> action);
  ~AbortHook();
  AbortHook(const AbortHook&) = delete;
  AbortHook& operator=(const AbortHook&) = delete;

  /// Runs all actions there are, on a thread of their own, and waits for them at most `seconds`.
  /// False when they took longer; the thread is left behind then.
  static bool run_all(double seconds);

 private:
  int number_;
};

}  // namespace choir
