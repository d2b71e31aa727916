#include "src/core/process.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <omp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/signals.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

/// True if an MPI launcher or its daemon started this process. The name of the parent decides,
/// because MPI sets a launcher's variables also in a process that nobody launched.
bool under_launcher() {
  std::ifstream file("/proc/" + std::to_string(getppid()) + "/comm");
  std::string parent;
  std::getline(file, parent);
  for (const char* name : {"mpiexec", "mpirun", "orterun", "orted", "prterun", "prted", "hydra_pmi",
                           "slurmstepd", "pals"})
    if (parent.starts_with(name)) return true;
  return false;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

std::int64_t resident_bytes() {
  long total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  const int fields = std::fscanf(file, "%ld %ld", &total, &resident);
  std::fclose(file);
  return fields == 2 ? std::int64_t{resident} * sysconf(_SC_PAGESIZE) : 0;
}

bool stdout_is_terminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  if (!under_launcher()) return true;
  std::array<char, 64> target{};
  const std::string link = "/proc/" + std::to_string(getppid()) + "/fd/1";
  const ssize_t length = readlink(link.c_str(), target.data(), target.size() - 1);
  return length > 0 && std::string(target.data()).starts_with("/dev/pts/");
}

std::size_t reported_columns(int descriptor) {
  const auto columns_of = [](int terminal) -> std::size_t {
    winsize size{};
    return ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 0;
  };
  if (!under_launcher()) return columns_of(descriptor);
  const std::string path = fmt::format("/proc/{}/fd/{}", getppid(), descriptor);
  const int above = open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (above < 0) return 0;
  const std::size_t columns = columns_of(above);
  close(above);
  return columns;
}

namespace {

cpu_set_t mask_of_thread() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  sched_getaffinity(0, sizeof mask, &mask);
  return mask;
}

}  // namespace

cpu_set_t own_cores() {
  cpu_set_t own = mask_of_thread();
  if (omp_get_proc_bind() == omp_proc_bind_false) return own;
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> cores(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, cores.data());
    for (const int core : cores)
      if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &own);
  }
  return own;
}

int usable_cores() {
  const cpu_set_t own = own_cores();
  return std::max(1, CPU_COUNT(&own));
}

int threads_of_rank(int cores, int ranks) {
  return std::clamp(cores / ranks, 1, omp_get_thread_limit());
}

cpu_set_t team_cores() {
  cpu_set_t all = mask_of_thread();
  if (omp_get_proc_bind() == omp_proc_bind_false) return all;
#pragma omp parallel
  {
    const cpu_set_t one = mask_of_thread();
#pragma omp critical
    CPU_OR(&all, &all, &one);
  }
  return all;
}

SharedLibrary::SharedLibrary(std::string_view name, std::initializer_list<const char*> sonames)
    : name_(name) {
  std::string tried;
  for (const char* soname : sonames) {
    handle_ = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      soname_ = soname;
      return;
    }
    const char* words = dlerror();
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", words != nullptr ? words : soname);
  }
  reason_ = fmt::format("{} cannot be loaded: {}", name_, tried);
}

void* SharedLibrary::address_of(const char* symbol) {
  if (handle_ == nullptr) return nullptr;
  void* address = dlsym(handle_, symbol);
  if (address == nullptr) {
    reason_ = fmt::format("{}: {} has no function '{}': another version is needed", name_, soname_,
                          symbol);
    soname_.clear();
    handle_ = nullptr;
  }
  return address;
}

}  // namespace choir

extern char** environ;

namespace choir {
namespace {

constexpr std::size_t kMostOutput = std::size_t{1} << 30;

/// Both ends are close-on-exec, so that programs started by other threads do not inherit them.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0)
      throw Error(ExitCode::other, fmt::format("cannot make a pipe: {}", std::strerror(errno)),
                  "are too many files open? ulimit -n");
  }
  ~Pipe() {
    close_write();
    ::close(ends_[0]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  void close_write() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

class SpawnActions {
 public:
  SpawnActions() { posix_spawn_file_actions_init(&actions_); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

class SpawnAttributes {
 public:
  SpawnAttributes() {
    posix_spawnattr_init(&attributes_);
    set_signals_of_child(attributes_);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

pid_t spawn(const std::vector<std::string>& argv, const std::string& package, int out, int err) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  SpawnActions actions;
  posix_spawn_file_actions_addopen(actions.get(), 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(actions.get(), out, 1);
  posix_spawn_file_actions_adddup2(actions.get(), err, 2);
  const SpawnAttributes attributes;
  pid_t pid = 0;
  const int failure =
      ::posix_spawnp(&pid, words[0], actions.get(), attributes.get(), words.data(), environ);
  if (failure == ENOENT)
    throw DataError(fmt::format("program not found: {}", argv[0]),
                    fmt::format("apt-get install {}", package));
  if (failure != 0)
    throw DataError(fmt::format("cannot start '{}': {}", argv[0], std::strerror(failure)));
  return pid;
}

/// Reads both pipes until they end; reading them together keeps a program from blocking on a full
/// one. Returns false if the output exceeds kMostOutput.
bool drain(int out, std::string& output, int err, std::string& errors) {
  std::array<pollfd, 2> open{{{out, POLLIN, 0}, {err, POLLIN, 0}}};
  std::array<std::string*, 2> into{&output, &errors};
  std::vector<char> piece(std::size_t{1} << 16);
  while (open[0].fd >= 0 || open[1].fd >= 0) {
    if (::poll(open.data(), open.size(), -1) < 0 && errno != EINTR) break;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].fd < 0 || open[i].revents == 0) continue;
      const ssize_t got = ::read(open[i].fd, piece.data(), piece.size());
      if (got > 0) into[i]->append(piece.data(), static_cast<std::size_t>(got));
      if (into[i]->size() > kMostOutput) return false;
      if (got == 0 || (got < 0 && errno != EINTR)) open[i].fd = -1;
    }
  }
  return true;
}

}  // namespace

std::string run_program(const std::vector<std::string>& argv, const std::string& package) {
  Pipe out, err;
  const pid_t pid = spawn(argv, package, out.write_end(), err.write_end());
  out.close_write();
  err.close_write();
  std::string output, errors;
  const bool ended = drain(out.read_end(), output, err.read_end(), errors);
  if (!ended) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended)
    throw DataError(fmt::format("'{}' wrote more than {} MiB and was stopped", join(argv, " "),
                                kMostOutput >> 20),
                    "is it the program of that name?");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const std::string how = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                                : fmt::format("exit code {}", WEXITSTATUS(status));
    throw DataError(fmt::format("'{}' ended with {}: {}", join(argv, " "), how, trim(errors)));
  }
  return output;
}

}  // namespace choir
