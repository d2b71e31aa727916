#include "src/core/signals.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <system_error>

#include "choir/core/error.hpp"

namespace choir {
namespace {

/// Signals that a thread raises in itself by a fault, and the clock of profilers.
constexpr std::array kNeverBlocked{SIGSEGV, SIGBUS, SIGFPE,  SIGILL,
                                   SIGTRAP, SIGSYS, SIGABRT, SIGPROF};
constexpr std::array kOfWrites{SIGPIPE, SIGXFSZ};

/// A profiler walks the stack in its handler. The frame itself takes up to 11 KiB (AMX).
constexpr std::size_t kStackBytes = std::size_t{64} << 10;

std::size_t guard_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// The mask for child processes. It is global because pthread_atfork() passes no argument to its
/// handlers.
std::optional<sigset_t>& mask_of_children() {
  static std::optional<sigset_t> mask;
  return mask;
}

extern "C" void restore_mask_in_child() {
  if (const auto& mask = mask_of_children()) pthread_sigmask(SIG_SETMASK, &*mask, nullptr);
}

sigset_t blocked_signals() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int number : kNeverBlocked) sigdelset(&blocked, number);
  return blocked;
}

}  // namespace

AlternateSignalStack::AlternateSignalStack() {
  stack_t stack{};
  if (sigaltstack(nullptr, &stack) != 0 || (stack.ss_flags & SS_DISABLE) == 0) return;
  const std::size_t guard = guard_bytes();
  void* const memory = mmap(nullptr, guard + kStackBytes, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  memory_ = memory;
  stack.ss_sp = static_cast<std::byte*>(memory) + guard;
  stack.ss_size = kStackBytes;
  stack.ss_flags = 0;
  if (mprotect(stack.ss_sp, kStackBytes, PROT_READ | PROT_WRITE) == 0) sigaltstack(&stack, nullptr);
}

AlternateSignalStack::~AlternateSignalStack() {
  if (memory_ == nullptr) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
  munmap(memory_, guard_bytes() + kStackBytes);
}

SignalThread::SignalThread() {
  sem_init(&end_, 0, 0);
  use_alternate_stacks();
  const sigset_t blocked = blocked_signals();
  pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  mask_of_children() = before_;
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, restore_mask_in_child);
  try {
    thread_ = std::thread([this] {
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
      while (sem_wait(&end_) != 0) continue;  // a handler interrupted it
    });
  } catch (const std::system_error&) {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    throw Error(ExitCode::other, "the system refuses to start a thread",
                "raise the limit on memory (ulimit -v) or on processes (ulimit -u)");
  }
}

SignalThread::~SignalThread() {
  sem_post(&end_);
  thread_.join();
  sem_destroy(&end_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void use_alternate_stacks() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0) continue;  // a signal of the C library itself
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) continue;
    if ((action.sa_flags & SA_ONSTACK) != 0) continue;
    action.sa_flags |= SA_ONSTACK;
    sigaction(number, &action, nullptr);
  }
}

void turn_signals_of_writes_into_errors() {
  for (const int number : kOfWrites) std::signal(number, SIG_IGN);
}

void set_signals_of_child(posix_spawnattr_t& attributes) {
  sigset_t defaults;
  sigemptyset(&defaults);
  for (const int number : kOfWrites) sigaddset(&defaults, number);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  short flags = POSIX_SPAWN_SETSIGDEF;
  if (const auto& mask = mask_of_children()) {
    posix_spawnattr_setsigmask(&attributes, &*mask);
    flags |= POSIX_SPAWN_SETSIGMASK;
  }
  posix_spawnattr_setflags(&attributes, flags);
}

}  // namespace choir
