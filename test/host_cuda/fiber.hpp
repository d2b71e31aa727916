#pragma once
// One CUDA thread: a stack and a point at which to continue, switched by hand on one thread of the
// system. AddressSanitizer is told about every stack; ThreadSanitizer sees every fiber as a thread
// of its own.
#include <cstddef>
#include <functional>

namespace host_cuda {

/// The point to which fibers return: the system thread that runs them, its stack and its next
/// instruction.
struct Home {
  void* pointer = nullptr;
  // For the sanitizers.
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  void* fake_stack = nullptr;
  void* tsan = nullptr;
};

class Fiber {
 public:
  Fiber(Home& home, std::size_t stack_bytes);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next resume() starts body() from its beginning; body outlives its run.
  void start(const std::function<void()>& body);
  /// Called by the scheduler: runs until this fiber, or one to which it switched, yields, or a body
  /// has returned.
  void resume();
  /// Called by the fiber itself: returns to the scheduler.
  void yield() { go_home(false); }
  /// Called by the fiber itself: switches to another fiber that was started.
  void give_way_to(Fiber& next);
  bool finished() const { return finished_; }

 private:
  static void entry(Fiber* self);
  friend void fiber_entry(Fiber* self);
  void go_home(bool for_good);
  void arrive();

  Home& home_;
  const std::function<void()>* body_ = nullptr;
  char* stack_ = nullptr;
  std::size_t bytes_, skew_;
  void* pointer_ = nullptr;  // saved stack pointer
  bool finished_ = true;
  // For the sanitizers.
  void* fake_stack_ = nullptr;
  void* tsan_ = nullptr;
};

/// Ordering for ThreadSanitizer: events before release() are visible after acquire() of the same
/// address. No effect in other builds.
#if defined(HOST_CUDA_TSAN)
void tsan_acquire(void* address);
void tsan_release(void* address);
#else
inline void tsan_acquire(void*) {}
inline void tsan_release(void*) {}
#endif

}  // namespace host_cuda
