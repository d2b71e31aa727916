#pragma once
// No signal interrupts a thread that computes.
//
// The operating system writes the frame of a signal handler below the stack pointer of the thread
// that it interrupts. Code that a library generates may keep its stack pointer inside a buffer of
// the heap (the AVX2 products of oneDNN do), and then that frame overwrites the heap. Therefore
// threads that compute block every signal except the reports of a crash and SIGPROF, and they have
// an alternate stack for these; one thread of its own takes all other signals.
//
// The program `choir` does all of this in its main(). A program that uses choir as a library has a
// main() and threads of its own, and does the following:
//   - It constructs a SignalThread first in main(), before any library starts a thread, before
//     MPI_Init and before the first OpenMP team, because a new thread inherits the mask of the one
//     that starts it. Threads that were started earlier must block the signals themselves.
//   - It installs handlers with SA_ONSTACK, and calls use_alternate_stacks() after it has
//     initialised libraries that install handlers without it.
//   - Each thread that calls choir has an AlternateSignalStack. The threads of OpenMP teams come
//     and go with the size of the teams, so src/app/thread_start.cpp wraps pthread_create in the
//     program; a library must not do this to its user.
#include <semaphore.h>
#include <spawn.h>

#include <csignal>
#include <cstddef>
#include <thread>

namespace choir {

/// An alternate signal stack of the thread that constructs it, which must also destroy it. A thread
/// that has one already keeps it. Where there is no memory for a stack, the thread stays without.
class AlternateSignalStack {
 public:
  AlternateSignalStack();
  ~AlternateSignalStack();
  AlternateSignalStack(const AlternateSignalStack&) = delete;
  AlternateSignalStack& operator=(const AlternateSignalStack&) = delete;

 private:
  void* memory_ = nullptr;
};

/// While it lives, the thread that constructed it, and every thread started from that one, blocks
/// all signals except those that report a crash and SIGPROF. A thread of its own has the mask from
/// before, so that default actions and the handlers of everybody run there. One at a time in a
/// process. A child process gets the mask from before as soon as it is forked; one that goes on to
/// compute constructs a SignalThread of its own.
class SignalThread {
 public:
  /// Throws Error when the thread cannot be started.
  SignalThread();
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  AlternateSignalStack stack_;
  sigset_t before_{};
  sem_t end_{};
  std::thread thread_;
};

/// Adds SA_ONSTACK to every handler that the process has at this moment: libraries and preloaded
/// profilers install theirs without it.
void use_alternate_stacks();

/// A write to a pipe without a reader, or beyond the limit on the size of files, is from now on an
/// error of that write; by default SIGPIPE and SIGXFSZ end the process.
void turn_signals_of_writes_into_errors();

/// A program that is started with these attributes has the mask from before the SignalThread, and
/// the default actions for the signals of writes.
void set_signals_of_child(posix_spawnattr_t& attributes);

}  // namespace choir
