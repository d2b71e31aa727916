#pragma once
// The ending of a counted thing in a message: "1 recording", "2 recordings".
#include <cstdint>

namespace choir {

constexpr const char* plural(std::int64_t n) {
  return n == 1 ? "" : "s";
}

}  // namespace choir
