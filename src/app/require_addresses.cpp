// A limit on addresses (ulimit -v) that is too low for the libraries ends the program with a
// message. OpenBLAS maps a buffer of 128 MiB when it is loaded, which is before main(), and where
// the system refuses it asks again for ever. The functions of .preinit_array run before those of
// any library, so the program asks there. Sanitizers reserve addresses without end, so that their
// programs do without this source.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <string_view>

namespace {

/// The buffer, and some more for what other libraries take before main().
constexpr std::size_t kNeeded = std::size_t{160} << 20;

extern "C" void require_addresses(int, char**, char**) {
  void* const memory =
      mmap(nullptr, kNeeded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) {
    munmap(memory, kNeeded);
    return;
  }
  constexpr std::string_view kWords =
      "choir: out of memory: the system does not give the libraries of this program the 160 MiB "
      "of addresses that they need to start\n"
      "  -> raise the limit (ulimit -v)\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kWords.data(), kWords.size());
  _exit(1);
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kBeforeLibraries)(int, char**, char**) = require_addresses;

}  // namespace
