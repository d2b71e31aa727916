#pragma once
// Conventions for the positions of tokens: valid positions and padding.
#include <cstdint>
#include <limits>

namespace choir::ops {

/// End of the valid positions if no position is padding.
inline constexpr std::int64_t kNoPositionEnd = std::numeric_limits<std::int64_t>::max();

/// Number of the `tokens` positions from `first` on that are before `end`.
constexpr std::int64_t real_positions(std::int64_t first, std::int64_t tokens, std::int64_t end) {
  return first >= end ? 0 : end - first < tokens ? end - first : tokens;
}

/// The row of a table for `position`; padding uses the last valid one.
constexpr std::int64_t table_row(std::int64_t position, std::int64_t end) {
  return position < end ? position : end - 1;
}

}  // namespace choir::ops
