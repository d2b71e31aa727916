// Gives every thread of the program an alternate signal stack. libgomp ends threads when a team
// shrinks and starts others when one grows, so the stack must be set when a thread starts. The
// program therefore defines pthread_create(), which calls that of the C library. Sanitizers define
// it too and give each thread an alternate stack themselves. A library must not redefine it for its
// users, so this source is linked only into programs, and not into those with sanitizers.

#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>
#include <cstdlib>

#include "src/core/signals.hpp"

namespace {

struct Start {
  void* (*routine)(void*);
  void* argument;
};

extern "C" void* run_on_signal_stack(void* given) {
  const Start start = *static_cast<Start*>(given);
  std::free(given);
  const choir::AlternateSignalStack stack;
  return start.routine(start.argument);
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*routine)(void*), void* argument) noexcept {
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (create == nullptr) return ENOSYS;
  auto* const start = static_cast<Start*>(std::malloc(sizeof(Start)));
  if (start == nullptr) return EAGAIN;
  *start = {routine, argument};
  const int failure = create(thread, attributes, run_on_signal_stack, start);
  if (failure != 0) std::free(start);
  return failure;
}
