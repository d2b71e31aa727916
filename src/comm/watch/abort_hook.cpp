#include "src/comm/watch/abort_hook.hpp"

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "src/comm/watch/abort_hook.hpp"

namespace choir {
namespace {

struct Hooks {
  std::mutex mutex;
  std::map<int, std::function<void()>> actions;
  int next = 0;
};

Hooks& hooks() {
  static auto* all = new Hooks();  // never destroyed: a thread that was left behind may still use
                                   // it
  return *all;
}

struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

}  // namespace

AbortHook::AbortHook(std::function<void()> action) {
  Hooks& all = hooks();
  const std::lock_guard lock(all.mutex);
  number_ = all.next++;
  all.actions.emplace(number_, std::move(action));
}

AbortHook::~AbortHook() {
  Hooks& all = hooks();
  const std::lock_guard lock(all.mutex);
  all.actions.erase(number_);
}

bool AbortHook::run_all(double seconds) {
  return run_bounded(
      [] {
        // The lock is held throughout, so that an action's objects cannot be destroyed while it
        // runs.
        const std::lock_guard lock(hooks().mutex);
        for (const auto& [number, action] : hooks().actions) action();
      },
      seconds);
}

bool run_bounded(std::function<void()> action, double seconds) {
  const auto progress = std::make_shared<Progress>();
  std::thread([progress, action = std::move(action)] {
    action();
    const std::lock_guard lock(progress->mutex);
    progress->done = true;
    progress->changed.notify_all();
  }).detach();
  std::unique_lock lock(progress->mutex);
  return progress->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                    [&] { return progress->done; });
}

bool abort_communicators(double seconds) {
  return AbortHook::run_all(seconds);
}

}  // namespace choir
