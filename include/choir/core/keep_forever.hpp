#pragma once
// For what others may still use and nobody can wait for: a rank that is missing, a thread that
// hangs.
#include <mutex>
#include <utility>
#include <vector>

namespace choir {

/// Keeps the value until the process ends and never destroys it. From any thread.
template <class T>
void keep_forever(T value) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<T>;  // pointed to: no leak to those who look for leaks
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(value));
}

}  // namespace choir
