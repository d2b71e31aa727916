#pragma once
// One CUDA thread: a stack and a place to continue, switched by hand on one thread of the system.
// AddressSanitizer is told about every stack, ThreadSanitizer sees every fiber as a thread of its
// own.
#include <cstddef>
#include <functional>

namespace host_cuda {

class Fiber {
 public:
  explicit Fiber(std::size_t stack_bytes);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next resume() starts body() from its beginning; body outlives its run.
  void start(const std::function<void()>& body);
  /// Called by the scheduler: runs until the fiber yields or its body has returned.
  void resume();
  /// Called by the fiber itself: back to the scheduler.
  void yield() { leave(false); }
  bool finished() const { return finished_; }

 private:
  static void entry(Fiber* self);
  friend void fiber_entry(Fiber* self);
  void leave(bool for_good);

  const std::function<void()>* body_ = nullptr;
  char* stack_ = nullptr;
  std::size_t bytes_, skew_;
  void* pointer_ = nullptr;  // saved stack pointer of the fiber
  void* caller_ = nullptr;   // ... and of the scheduler
  bool finished_ = true;
  // For the sanitizers.
  void* fake_stack_ = nullptr;
  void* caller_fake_stack_ = nullptr;
  const void* caller_bottom_ = nullptr;
  std::size_t caller_bytes_ = 0;
  void* tsan_ = nullptr;
  void* caller_tsan_ = nullptr;
};

/// Ordering for ThreadSanitizer: what happened before release() is seen after acquire() of the same
/// address. Nothing in other builds.
#if defined(HOST_CUDA_TSAN)
void tsan_acquire(void* address);
void tsan_release(void* address);
#else
inline void tsan_acquire(void*) {}
inline void tsan_release(void*) {}
#endif

}  // namespace host_cuda
