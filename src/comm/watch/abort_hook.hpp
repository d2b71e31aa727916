#pragma once
// Actions that run when a process gives up while its other threads may be stuck: NCCL's
// communicators are aborted, so that kernels that wait for a peer end.

#include <functional>

namespace choir {

/// Runs `action` on a thread of its own and waits at most `seconds`; returns false if it takes
/// longer. The thread is then left behind, so the action must own what it uses.
bool run_bounded(std::function<void()> action, double seconds);

class AbortHook {
 public:
  /// `action` must return soon and may run concurrently with everything else in the process.
  explicit AbortHook(std::function<void()> action);
  ~AbortHook();
  AbortHook(const AbortHook&) = delete;
  AbortHook& operator=(const AbortHook&) = delete;

  /// Runs all registered actions as run_bounded() does.
  static bool run_all(double seconds);

 private:
  int number_;
};

/// Ends the NCCL kernels that wait for peers; every later call on their communicators throws.
/// Returns false if this takes longer than `seconds`. Local, may be called from any thread.
bool abort_communicators(double seconds);

}  // namespace choir
