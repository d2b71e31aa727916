// Ends the program with a message if the limit on addresses (ulimit -v) is too low for its
// libraries. OpenBLAS maps 128 MiB for each thread when it is loaded, which is before main(), and
// retries for ever if the system refuses. The functions of .preinit_array run before those of any
// library, so the check is there. Programs with sanitizers omit this source, because sanitizers
// reserve very large address ranges.

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string_view>

namespace {

constexpr std::size_t kBuffer = std::size_t{128} << 20;
/// All other libraries together map less than this before main(), with the plugins that Open MPI
/// loads when it starts: without room for them it ends the program without a word.
constexpr std::size_t kOthers = std::size_t{64} << 20;

/// Reads a number from the environment; the C library has not set up getenv() yet.
int number_of(char** environment, std::string_view name) {
  for (; *environment != nullptr; ++environment) {
    const std::string_view line(*environment);
    if (line.starts_with(name) && line.substr(name.size()).starts_with('='))
      return atoi(line.data() + name.size() + 1);
  }
  return 0;
}

/// The number of threads for which OpenBLAS allocates buffers when it is loaded.
int first_team(char** environment) {
  cpu_set_t cores;
  const int most = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  for (const char* name : {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const int threads = number_of(environment, name);
    if (threads > 0) return std::min(threads, most);
  }
  return std::clamp(most, 1, 128);
}

extern "C" void require_addresses(int, char**, char** environment) {
  const std::size_t needed = static_cast<std::size_t>(first_team(environment)) * kBuffer + kOthers;
  void* const memory = mmap(nullptr, needed, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) {
    munmap(memory, needed);
    return;
  }
  constexpr std::string_view kWords =
      "choir: out of memory: the limit on address space is too low for the libraries of this "
      "program, which need 128 MiB per thread to start\n  -> raise the limit (ulimit -v), or use "
      "fewer threads (OMP_NUM_THREADS)\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kWords.data(), kWords.size());
  _exit(1);
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kBeforeLibraries)(int, char**, char**) = require_addresses;

}  // namespace
