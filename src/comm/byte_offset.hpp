#pragma once
// A place in memory that is so many bytes behind another.
#include <cstddef>

namespace choir {

inline std::byte* at(void* data, std::size_t offset) {
  return static_cast<std::byte*>(data) + offset;
}
inline const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

}  // namespace choir
