#pragma once
// This process and its machine: host, memory, CPU cores, libraries that are loaded while the
// program runs, objects that are never destroyed, and other programs that it runs. If OpenMP binds
// threads to places (OMP_PROC_BIND, OMP_PLACES), the affinity mask of a thread contains only the
// place of that thread. Libraries are searched only where the system's loader looks
// (LD_LIBRARY_PATH, rpath, ld.so.cache) and only under the given names; a binary that was built
// with them also works where they are missing, and reports which one is.

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace choir {

/// The name of this machine.
std::string host_name();

/// Resident bytes at present, or 0 if /proc does not report them.
std::int64_t resident_bytes();

/// True if somebody sees what this process writes to stdout. A launcher may give its processes
/// terminals although its own output is redirected to a file; then the launcher's stdout decides.
bool stdout_is_terminal();
/// The columns that the terminal behind STDOUT_FILENO or STDERR_FILENO reports; 0 if there is none
/// or if it reports none. A launcher's terminal decides for the processes that it started.
std::size_t reported_columns(int descriptor);

/// The cores given to this process: its affinity mask, or the union of all places if OpenMP binds
/// threads.
cpu_set_t own_cores();
/// The number of own_cores(), at least 1.
int usable_cores();
/// Threads of a rank that shares `cores` with `ranks` - 1 others: at least 1, and at most
/// OMP_THREAD_LIMIT, because a larger team would be cut down to that limit.
int threads_of_rank(int cores, int ranks);

/// Cores on which an OpenMP team of the calling thread may run: own_cores(), or fewer if its
/// threads are bound, possibly to cores that another process uses too.
cpu_set_t team_cores();

/// A handle that is never closed, because such libraries keep threads and atexit handlers.
class SharedLibrary {
 public:
  /// The first of `sonames` that can be loaded. `name` is what messages call it.
  SharedLibrary(std::string_view name, std::initializer_list<const char*> sonames);

  bool loaded() const { return handle_ != nullptr; }
  /// "libcudnn.so.9"; empty when not loaded.
  const std::string& soname() const { return soname_; }
  /// The loader's messages for all names that were tried; empty when loaded.
  const std::string& reason() const { return reason_; }

  /// Fills one entry of a table of functions. A missing function makes the library unusable:
  /// loaded() becomes false, and the reason names the function.
  template <class F>
  void find(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(address_of(symbol));
  }

 private:
  void* address_of(const char* symbol);

  std::string name_, soname_, reason_;
  void* handle_ = nullptr;
};

/// Keeps the value until the process ends and never destroys it. May be called from any thread.
template <class T>
void keep_forever(T value) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<T>;  // the pointer keeps leak checkers from reporting
                                                 // it
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(value));
}

/// Returns the standard output of `argv`; argv[0] is searched in PATH, and standard input is empty.
/// Throws DataError if the program is missing (the hint names `package`) or exits with another code
/// than 0 (the message quotes its standard error). Local; may be called by several threads.
std::string run_program(const std::vector<std::string>& argv, const std::string& package);

}  // namespace choir
