#include "test/support/count_allocations.hpp"

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> calls{0}, live{0}, most{0};

std::int64_t bytes_at(void* at) {
  return static_cast<std::int64_t>(malloc_usable_size(at));
}

void given(void* at) {
  const std::int64_t bytes = bytes_at(at);
  const std::int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t before = most.load(std::memory_order_relaxed);
  while (now > before && !most.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
  }
}

void returned(void* at) {
  if (at != nullptr) live.fetch_sub(bytes_at(at), std::memory_order_relaxed);
  std::free(at);
}

void* counted(std::size_t bytes, std::size_t alignment) {
  calls.fetch_add(1, std::memory_order_relaxed);
  void* at = nullptr;
  if (posix_memalign(&at, alignment, bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc();
  given(at);
  return at;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new[](std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* at) noexcept {
  returned(at);
}
void operator delete[](void* at) noexcept {
  returned(at);
}
void operator delete(void* at, std::size_t) noexcept {
  returned(at);
}
void operator delete[](void* at, std::size_t) noexcept {
  returned(at);
}
void operator delete(void* at, std::align_val_t) noexcept {
  returned(at);
}
void operator delete[](void* at, std::align_val_t) noexcept {
  returned(at);
}
void operator delete(void* at, std::size_t, std::align_val_t) noexcept {
  returned(at);
}
void operator delete[](void* at, std::size_t, std::align_val_t) noexcept {
  returned(at);
}

namespace choir::test {

std::int64_t allocations() {
  return calls.load(std::memory_order_relaxed);
}

PeakBytes::PeakBytes() : before_(live.load(std::memory_order_relaxed)) {
  most.store(before_, std::memory_order_relaxed);
}

std::int64_t PeakBytes::value() const {
  return most.load(std::memory_order_relaxed) - before_;
}

}  // namespace choir::test
