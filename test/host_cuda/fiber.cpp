#include "test/host_cuda/fiber.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
// The scheduler itself is never instrumented for threads (it would report its own switches), so the
// build defines here how the kernels are compiled.
#if defined(HOST_CUDA_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

#if !defined(__x86_64__)
#error "the host execution of kernels switches stacks with x86-64 instructions"
#endif

extern "C" void host_cuda_switch(void** save, void* to);
// Saves the registers that the calling convention requires a function to preserve, and swaps
// stacks.
asm(R"(
.text
.globl host_cuda_switch
.type host_cuda_switch,@function
host_cuda_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size host_cuda_switch,.-host_cuda_switch
)");

namespace host_cuda {
namespace {

constexpr std::size_t kGuard = 4096;
Fiber* g_starting = nullptr;  // handed to the entry of a new fiber

/// Each sanitizer is told whose stack is next; AddressSanitizer stores its state of the fiber that
/// is left in `left`, nullptr for one that ends.
void announce([[maybe_unused]] void** left, [[maybe_unused]] const void* bottom,
              [[maybe_unused]] std::size_t bytes, [[maybe_unused]] void* tsan) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(left, bottom, bytes);
#endif
#if defined(HOST_CUDA_TSAN)
  __tsan_switch_to_fiber(tsan, __tsan_switch_to_fiber_no_sync);
#endif
}

}  // namespace

void fiber_entry(Fiber* self) {
  Fiber::entry(self);
}

static void first_instruction() {
  fiber_entry(g_starting);
}

// Stacks begin at pages; if all of them were used from the same offset in a page, the threads of a
// warp would compete for a few sets of the cache.
static std::size_t next_skew() {
  static std::atomic<std::size_t> made{0};
  constexpr std::size_t kStep = 320, kPage = 4096;
  return made++ * kStep % kPage;
}

Fiber::Fiber(Home& home, std::size_t stack_bytes)
    : home_(home), bytes_(stack_bytes), skew_(next_skew()) {
  void* memory = mmap(nullptr, bytes_ + kGuard, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuard, PROT_NONE);  // an overflow faults instead of corrupting
  stack_ = static_cast<char*>(memory) + kGuard;
#if defined(HOST_CUDA_TSAN)
  tsan_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(HOST_CUDA_TSAN)
  __tsan_destroy_fiber(tsan_);
#endif
  munmap(stack_ - kGuard, bytes_ + kGuard);
}

void Fiber::start(const std::function<void()>& body) {
  body_ = &body;
  finished_ = false;
  fake_stack_ = nullptr;
  // The stack looks like one on which first_instruction() has been called: six registers to pop,
  // the return address, and the alignment of a stack after a call.
  auto** top = reinterpret_cast<void**>(stack_ + bytes_ - skew_) - 2;
  *top = reinterpret_cast<void*>(&first_instruction);
  pointer_ = top - 6;
}

void Fiber::resume() {
  g_starting = this;
#if defined(HOST_CUDA_TSAN)
  home_.tsan = __tsan_get_current_fiber();
#endif
  announce(&home_.fake_stack, stack_, bytes_, tsan_);
  host_cuda_switch(&home_.pointer, pointer_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(home_.fake_stack, nullptr, nullptr);
#endif
}

void Fiber::give_way_to(Fiber& next) {
  g_starting = &next;
  announce(&fake_stack_, next.stack_, next.bytes_, next.tsan_);
  host_cuda_switch(&pointer_, next.pointer_);
  arrive();
}

void Fiber::go_home(bool for_good) {
  announce(for_good ? nullptr : &fake_stack_, home_.bottom, home_.bytes, home_.tsan);
  host_cuda_switch(&pointer_, home_.pointer);
  arrive();
}

/// The first fiber that arrives anywhere comes from home, whose stack is otherwise unknown.
void Fiber::arrive() {
#if defined(__SANITIZE_ADDRESS__)
  const bool from_home = home_.bottom == nullptr;
  __sanitizer_finish_switch_fiber(fake_stack_, from_home ? &home_.bottom : nullptr,
                                  from_home ? &home_.bytes : nullptr);
#endif
}

void Fiber::entry(Fiber* self) {
  self->arrive();
  (*self->body_)();
  self->finished_ = true;
  self->go_home(true);
  std::abort();  // a finished fiber is never resumed
}

#if defined(HOST_CUDA_TSAN)
void tsan_acquire(void* address) {
  __tsan_acquire(address);
}

void tsan_release(void* address) {
  __tsan_release(address);
}
#endif

}  // namespace host_cuda
