#pragma once
// Growth of the memory of a process during an action, for tests that limit the cost of a file.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace choir::test {

/// Returns the bytes that `action` adds to the largest resident memory of a child process that does
/// nothing else; -1 if it ends abnormally. A sanitizer's allocator makes the number meaningless.
inline long peak_growth(const std::function<void()>& action) {
  long* grown = static_cast<long*>(
      mmap(nullptr, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  *grown = -1;
  if (const pid_t child = fork(); child == 0) {
    const auto peak = [] {
      struct rusage used {};
      getrusage(RUSAGE_SELF, &used);
      return used.ru_maxrss * 1024;
    };
    // Large blocks are returned when they are freed, as in a new process; otherwise blocks that
    // earlier tests of this program freed would be kept.
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    const long before = peak();
    action();
    *grown = peak() - before;
    _exit(0);
  } else {
    waitpid(child, nullptr, 0);
  }
  const long result = *grown;
  munmap(grown, sizeof(long));
  return result;
}

}  // namespace choir::test
