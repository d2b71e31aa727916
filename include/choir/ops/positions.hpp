#pragma once
// What an op is told about the positions of its tokens.
#include <cstdint>
#include <limits>

namespace choir::ops {

/// No position is padding.
inline constexpr std::int64_t kNoPositionEnd = std::numeric_limits<std::int64_t>::max();

/// How many of `tokens` positions from `first` on are before `end`.
constexpr std::int64_t real_positions(std::int64_t first, std::int64_t tokens, std::int64_t end) {
  return first >= end ? 0 : end - first < tokens ? end - first : tokens;
}

/// The row of a table that stands for `position`: padding reads the last real one.
constexpr std::int64_t table_row(std::int64_t position, std::int64_t end) {
  return position < end ? position : end - 1;
}

}  // namespace choir::ops
