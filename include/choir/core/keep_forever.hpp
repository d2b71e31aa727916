#pragma once
// Keeps objects that others may still use and for which nobody can wait: those of a missing rank or
// of a thread that hangs.
#include <mutex>
#include <utility>
#include <vector>

namespace choir {

/// Keeps the value until the process ends and never destroys it. May be called from any thread.
template <class T>
void keep_forever(T value) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<T>;  // the pointer keeps leak checkers from reporting
                                                 // it
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(value));
}

}  // namespace choir
