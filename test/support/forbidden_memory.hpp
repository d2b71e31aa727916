#pragma once
// Memory behind the end of a tensor: under AddressSanitizer any access ends the test; otherwise the
// tests check if it was written.
#include <cstddef>

extern "C" void __asan_poison_memory_region(void const volatile*, std::size_t)
    __attribute__((weak));
extern "C" void __asan_unpoison_memory_region(void const volatile*, std::size_t)
    __attribute__((weak));

namespace choir::test {

/// True if forbid() has an effect.
inline bool can_forbid() {
  return __asan_poison_memory_region != nullptr;
}
inline void forbid(const void* address, std::size_t bytes) {
  if (can_forbid()) __asan_poison_memory_region(address, bytes);
}
/// Must be called before the memory is freed.
inline void allow(const void* address, std::size_t bytes) {
  if (can_forbid()) __asan_unpoison_memory_region(address, bytes);
}

}  // namespace choir::test
