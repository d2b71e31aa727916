#include "choir/core/run_program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "choir/core/error.hpp"
#include "choir/core/signals.hpp"
#include "choir/core/text.hpp"

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
