#pragma once
// Helpers for code that both the host compiler and nvcc compile: the marker of device functions and
// a bit cast (std::bit_cast is no device function).
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)
#define CHOIR_HOST_DEVICE __host__ __device__
#else
#define CHOIR_HOST_DEVICE
#endif

namespace choir {

/// The bits of `from` as a value of type To.
template <class To, class From>
CHOIR_HOST_DEVICE inline To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From) && std::is_trivially_copyable_v<From> &&
                std::is_trivially_copyable_v<To>);
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace choir
